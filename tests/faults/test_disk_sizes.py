"""Real disks that are too small: refused before anything is mapped, and nothing left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import overspill as ov
from capabilities import requires
from overspill.errors import DiskRefusedError, NoRoomError
from overspill.storage.workspace import leave_runs
from spilling import open_descriptors, spill_files

MIB = 1 << 20


def free_bytes(place: Path) -> int:
    held = os.statvfs(place)
    return held.f_bavail * held.f_frsize


@requires("loop_device")
def test_ten_times_the_free_disk_is_an_oserror_before_anything_is_mapped_and_no_file_is_left(
    loop_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def maps(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("mapped")

    disk = loop_disk(32 * MIB)
    with ov.settings(spill_dir=disk / "spill", min_bytes=1, shm_reserve_bytes=1 << 60):
        ov.prepare_spill_dir()
        free, descriptors = free_bytes(disk), open_descriptors()
        monkeypatch.setattr(torch.UntypedStorage, "from_file", maps)
        with pytest.raises(OSError) as caught:
            ov.allocate_disk_backed(10 * free, torch.uint8, required=True)
        assert isinstance(caught.value, DiskRefusedError)
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.needed_bytes == 10 * free
        assert 0 < (caught.value.available_bytes or 0) <= free
        assert ov.allocate_disk_backed(10 * free, torch.uint8) is None
        with pytest.raises(NoRoomError, match="disk may give") as none:
            ov.allocate_preshared(10 * free, torch.uint8)
        assert none.value.needed_bytes == 10 * free
        assert ov.plan_placement(10 * free, torch.uint8).home == "none"
        assert spill_files(disk / "spill") == []
        assert free_bytes(disk) == free and open_descriptors() == descriptors
        leave_runs()


@requires("loop_device")
def test_what_is_discarded_makes_room_on_a_full_disk(loop_disk: Callable[[int], Path]) -> None:
    disk = loop_disk(32 * MIB)
    with ov.settings(spill_dir=disk / "spill", min_bytes=1):
        kept = []
        while (tensor := ov.allocate_disk_backed(4 * MIB, torch.uint8)) is not None:
            kept.append(tensor.fill_(len(kept)))
        assert len(kept) > 3
        with ov.spill_scope():
            ov.discard(kept.pop())
            del tensor
            again = ov.allocate_disk_backed(4 * MIB, torch.uint8, required=True)
            again.fill_(77)
            assert ov.allocate_disk_backed(4 * MIB, torch.uint8) is None
            del again
        assert ov.allocate_disk_backed(4 * MIB, torch.uint8) is not None
        assert [int(one[-1]) for one in kept] == list(range(len(kept)))
        kept.clear()
        leave_runs()


@requires("loop_device")
def test_a_disk_that_others_fill_after_the_plan_refuses_and_never_kills(
    loop_disk: Callable[[int], Path],
) -> None:
    disk = loop_disk(32 * MIB)
    with ov.settings(spill_dir=disk / "spill", min_bytes=1):
        ov.prepare_spill_dir()
        assert ov.plan_placement(16 * MIB, torch.uint8).home == "disk"
        tensor = ov.allocate_preshared(16 * MIB, torch.uint8)
        (disk / "filler").write_bytes(bytes(free_bytes(disk) - MIB))
        tensor.fill_(3)  # reserved: the full disk cannot reach it
        assert int(tensor[-1]) == 3 and ov.release_page_cache(tensor)
        plan = ov.plan_placement(16 * MIB, torch.uint8)
        assert plan.home == "shm" and "disk may give" in plan.reason
        assert not ov.is_disk_backed(ov.allocate_preshared(16 * MIB, torch.uint8))
        (disk / "filler").unlink()
        del tensor
        leave_runs()
