"""Measured peaks of sharing, placing and concatenating, under real limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capabilities import requires

pytestmark = [pytest.mark.memory, requires("memory_cgroup")]
MIB = 1 << 20
# torch, and what a process needs besides.
BASE_BYTES = 200 * MIB

SHARE = """
import sys, torch
import overspill as ov
MIB = 1 << 20
tensor = torch.empty(512 * MIB, dtype=torch.uint8)
tensor.view(512, MIB).copy_(torch.arange(512, dtype=torch.int64).to(torch.uint8)[:, None])
ov.share_memory({"topology": tensor})
assert tensor.is_shared()
assert all(int(tensor[n * MIB]) == n % 256 == int(tensor[n * MIB + MIB - 1]) for n in range(512))
print("shared")
"""


def test_sharing_a_big_tensor_does_not_double_it(run_python: Callable[..., Any]) -> None:
    env = {"OVERSPILL_DIR": "", "OVERSPILL_RUN": "", "OVERSPILL_MIN_BYTES": ""}
    size = 512 * MIB
    result = run_python(SHARE, limit_bytes=BASE_BYTES + int(1.2 * size), env=env).check()
    assert result.stdout.split() == ["shared"] and result.kills == 0
    assert result.peaks.anon_shmem_bytes < BASE_BYTES + 1.2 * size


DISK = """
import os, torch
import overspill as ov
MIB = 1 << 20
tensor = ov.allocate_preshared((512 * MIB,), torch.uint8)
assert ov.is_disk_backed(tensor)
def held():
    report = ov.memory_report()
    return report.rss_anon_bytes + report.rss_shmem_bytes
before = held()
ov.share_memory(tensor)
tensor.share_memory_()
grown = held() - before
print(grown < 512 * MIB // 100, ov.residency(tensor).resident_bytes)
"""


def test_sharing_a_disk_backed_tensor_takes_nothing(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    env = {"OVERSPILL_DIR": str(tmp_path / "spill"), "OVERSPILL_MIN_BYTES": "1"}
    result = run_python(DISK, limit_bytes=BASE_BYTES + 64 * MIB, env={**env, "OVERSPILL_RUN": ""})
    assert result.check().stdout.split() == ["True", "0"]


CONCATENATE = """
import torch
import overspill as ov
MIB = 1 << 20
chunks = []
for number in range(16):
    rows = torch.full((8 * MIB,), number, dtype=torch.int32)  # 32 MiB
    chunks.append((rows,))
    del rows
(joined,) = ov.concatenate_chunks(chunks)
assert joined.shape == (128 * MIB,) and not chunks
assert [int(joined[n * 8 * MIB + 5]) for n in range(16)] == list(range(16))
print("disk" if ov.is_disk_backed(joined) else "shm" if joined.is_shared() else "memory")
"""


@pytest.mark.parametrize("home", ["shm", "disk"])
def test_concatenating_peaks_at_the_outputs_and_one_chunk(
    home: str, run_python: Callable[..., Any], tmp_path: Path
) -> None:
    place = str(tmp_path / "spill") if home == "disk" else ""
    env = {"OVERSPILL_DIR": place, "OVERSPILL_MIN_BYTES": "1MiB", "OVERSPILL_RUN": ""}
    most = BASE_BYTES + (512 + 32) * MIB
    result = run_python(CONCATENATE, limit_bytes=most + 32 * MIB, env=env).check()
    assert result.stdout.split() == [home] and result.kills == 0
    assert result.peaks.anon_shmem_bytes < most


SCATTER = """
import torch
import overspill as ov
MIB = 1 << 20
torch.ones(9).sum()
for random_access in (False, True):
    wanted = ov.memory_report().headroom_bytes + (0 if random_access else MIB)
    try:
        ov.allocate_preshared((wanted,), torch.uint8, random_access=random_access)
    except MemoryError as error:
        assert "of memory can still be had" in str(error), str(error)
        print("refused")
# What the policy lets through can be filled to the last byte.
size = 200 * MIB
plan = ov.plan_placement((size,), torch.uint8, random_access=True)
assert plan.home == "shm", plan
tensor = ov.allocate_preshared((size,), torch.uint8, random_access=True)
tensor[torch.randint(size, (1000,))] = 1
tensor.fill_(1)
print("filled")
"""


def test_nothing_is_placed_where_a_kill_could_follow(run_python: Callable[..., Any]) -> None:
    env = {"OVERSPILL_DIR": "", "OVERSPILL_MIN_BYTES": "1MiB", "OVERSPILL_RUN": ""}
    result = run_python(SCATTER, limit_bytes=512 * MIB, env=env).check()
    assert result.stdout.split() == ["refused", "refused", "filled"] and result.kills == 0


WRITE = """
import torch
import overspill as ov
MIB = 1 << 20
headroom = ov.available_memory_bytes()
size = 4 * headroom // MIB * MIB
tensor = ov.allocate_preshared((size,), torch.uint8)
assert ov.is_disk_backed(tensor)
for start in range(0, size, 16 * MIB):
    tensor[start : start + 16 * MIB] = start // (16 * MIB) % 251
print("lives")
report = ov.memory_report()
# Cache that is clean counts as available although the group's usage is at its limit.
assert report.usage_bytes > report.limit_bytes // 2, report
before = ov.residency(tensor).resident_bytes
assert before > 0
result = ov.release_page_cache(tensor)
after = ov.memory_report()
assert result and result.resident_after_bytes == 0, result
assert after.clean_file_bytes + after.dirty_bytes < 16 * MIB, after
assert after.usage_bytes < report.usage_bytes - before // 2
assert ov.available_memory_bytes() > headroom - 32 * MIB
print("released")
for start in range(0, size, 64 * MIB):
    assert int(tensor[start]) == start // (16 * MIB) % 251
"""


def test_a_run_that_writes_four_times_its_headroom_lives_and_gives_its_cache_back(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    place = tmp_path / "spill"
    env = {"OVERSPILL_DIR": str(place), "OVERSPILL_MIN_BYTES": "1MiB", "OVERSPILL_RUN": ""}
    result = run_python(WRITE, limit_bytes=400 * MIB, env=env).check()
    assert result.stdout.split() == ["lives", "released"] and result.kills == 0


AVAILABLE = """
import torch
import overspill as ov
MIB = 1 << 20
start = ov.available_memory_bytes()
spilled = ov.spill_tensor_to_disk(torch.ones(96 * MIB, dtype=torch.uint8), required=True)
assert int(spilled.view(torch.int64).amax()) > 0  # a sum of bytes would make a wide copy
assert ov.residency(spilled).resident_bytes > 48 * MIB
clean = ov.available_memory_bytes()
shared = torch.ones(64 * MIB, dtype=torch.uint8).share_memory_()
taken = ov.available_memory_bytes()
print(start - clean < 24 * MIB, 48 * MIB < clean - taken < 80 * MIB)
"""


def test_clean_cache_counts_as_available_and_shared_memory_does_not(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    env = {"OVERSPILL_DIR": str(tmp_path / "spill"), "OVERSPILL_MIN_BYTES": "1MiB"}
    result = run_python(AVAILABLE, limit_bytes=600 * MIB, env={**env, "OVERSPILL_RUN": ""})
    assert result.check().stdout.split() == ["True", "True"]
