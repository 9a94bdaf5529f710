"""A /dev/shm of 8 MiB, as small containers have: an error that says so, never SIGBUS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capabilities import requires
from spilling import spill_files

ASK = """
import gc, os, sys
import torch
import overspill as ov
torch.multiprocessing.set_sharing_strategy(sys.argv[1])
MIB = 1 << 20
big = torch.ones(64 * MIB, dtype=torch.uint8)
names, fds = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
asked = {
    "allocate": lambda: ov.allocate_preshared((64 * MIB,), torch.uint8),
    "scatter": lambda: ov.allocate_preshared((64 * MIB,), torch.uint8, random_access=True),
    "share": lambda: ov.share_memory(big),
    "share many": lambda: ov.share_memory(
        {n: torch.ones(2 * MIB, dtype=torch.uint8) for n in range(32)}
    ),
    "ipc": lambda: ov.share_memory_for_ipc({"big": big}),
    "concatenate": lambda: ov.concatenate_chunks([(big,)]),
}
plan = ov.plan_placement((64 * MIB,), torch.uint8)
assert plan.home == "none" and "/dev/shm has 8.0 MiB free" in plan.reason, plan
for name, ask in asked.items():
    try:
        ask()
    except MemoryError as error:
        told = str(error)
        assert "/dev/shm has 8.0 MiB free" in told and "64.0 MiB" in told, told
        assert "--shm-size" in told and "OVERSPILL_DIR" in told, told
        print(name)
    gc.collect()
assert set(os.listdir("/dev/shm")) == names, os.listdir("/dev/shm")
assert len(os.listdir("/proc/self/fd")) == fds
assert not big.is_shared() and bool(big.all())
# What fits beside the reserve of an eighth is taken, to the last byte, and written.
fits = ov.allocate_preshared((7 * MIB,), torch.uint8)
assert fits.is_shared()
fits.fill_(1)
try:
    ov.allocate_preshared((MIB,), torch.uint8)
except MemoryError:
    print("full")
"""


@requires("private_mount")
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_64_mib_in_an_8_mib_shared_memory_is_an_error_that_names_mount_free_and_wanted(
    strategy: str, private_shm: Callable[..., Any]
) -> None:
    env = {"OVERSPILL_DIR": "", "OVERSPILL_MIN_BYTES": "1MiB", "OVERSPILL_RUN": ""}
    result = private_shm(8 << 20)(ASK, arguments=[strategy], env=env).check()
    assert result.stdout.split("\n") == [
        "allocate",
        "scatter",
        "share",
        "share many",
        "ipc",
        "concatenate",
        "full",
        "",
    ]


DISK = """
import os, sys
import torch
import overspill as ov
MIB = 1 << 20
big = torch.ones(64 * MIB, dtype=torch.uint8)
for random_access in (False, True):
    tensor = ov.allocate_preshared((64 * MIB,), torch.uint8, random_access=random_access)
    assert ov.is_disk_backed(tensor)
    tensor.fill_(1)
    tensor.share_memory_()
assert ov.is_disk_backed(ov.share_memory_for_ipc({"big": big})["big"])
(joined,) = ov.concatenate_chunks([(big,), (big[:0],)])
assert ov.is_disk_backed(joined)
assert os.listdir("/dev/shm") == []
print("done")
"""


@requires("private_mount")
def test_with_a_spill_directory_the_same_goes_to_disk(
    private_shm: Callable[..., Any], tmp_path: Path
) -> None:
    place = tmp_path / "spill"
    env = {"OVERSPILL_DIR": str(place), "OVERSPILL_MIN_BYTES": "1MiB", "OVERSPILL_RUN": ""}
    result = private_shm(8 << 20)(DISK, env=env).check()
    assert result.stdout.split() == ["done"]
    assert "written at random and must go to disk" in result.stderr
    assert len(spill_files(place)) == 4


RACE = """
import os, torch
import overspill as ov
from overspill.tensors import shared_memory, rooms
MIB = 1 << 20
# Another process fills the mount between the look and the allocation.
measured = rooms.free_disk_bytes
rooms.free_disk_bytes = shared_memory.free_disk_bytes = lambda path: 1 << 40
for strategy in ("file_descriptor",):
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        ov.allocate_preshared((64 * MIB,), torch.uint8)
    except MemoryError as error:
        assert error.needed_bytes == 64 * MIB
        print("no room")
    tensor = torch.arange(8 * MIB)
    from overspill.tensors import share_in_place
    share_in_place.PIECE_BYTES = MIB
    try:
        ov.share_memory(tensor)
    except MemoryError:
        print("whole", torch.equal(tensor, torch.arange(8 * MIB)), tensor.is_shared())
assert os.listdir("/dev/shm") == []
"""


@requires("private_mount")
def test_room_that_vanishes_for_real_is_no_room_and_no_signal(
    private_shm: Callable[..., Any],
) -> None:
    env = {"OVERSPILL_DIR": "", "OVERSPILL_MIN_BYTES": "1MiB", "OVERSPILL_RUN": ""}
    result = private_shm(8 << 20)(RACE, env=env).check()
    assert result.stdout.split("\n") == ["no room", "whole True False", ""]
