from __future__ import annotations

import errno
import mmap
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import overspill as ov
from capabilities import requires
from overspill.linux.cgroups import MemoryUse
from overspill.linux.processes import ProcessMemory
from overspill.tensors import memory_use

MIB = 1 << 20
GROUP = MemoryUse(
    limit_bytes=1000 * MIB,
    usage_bytes=600 * MIB,
    anon_bytes=200 * MIB,
    shmem_bytes=50 * MIB,
    clean_file_bytes=250 * MIB,
    dirty_bytes=60 * MIB,
    writeback_bytes=40 * MIB,
    path="/group",
)


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ProcessMemory(3 * MIB, 2 * MIB, MIB, 6 * MIB, "status")
    monkeypatch.setattr(memory_use, "process_memory", lambda: own)
    monkeypatch.setattr(memory_use, "available_memory_bytes", lambda: 500 * MIB)


def test_the_binding_group_and_the_process(own: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_use, "binding_memory_group", lambda: GROUP)
    report = ov.memory_report()
    assert (report.group, report.limit_bytes, report.usage_bytes) == (
        "/group",
        1000 * MIB,
        600 * MIB,
    )
    assert report.headroom_bytes == 650 * MIB and report.available_bytes == 500 * MIB
    assert (report.anon_bytes, report.shmem_bytes) == (200 * MIB, 50 * MIB)
    assert (report.clean_file_bytes, report.dirty_bytes) == (250 * MIB, 60 * MIB)
    assert report.writeback_bytes == 40 * MIB
    assert (report.rss_anon_bytes, report.rss_file_bytes, report.rss_bytes) == (
        3 * MIB,
        2 * MIB,
        6 * MIB,
    )
    assert str(report) == (
        "memory: 500.0 MiB available; limit 1000.0 MiB, usage 600.0 MiB, headroom 650.0 MiB; "
        "anon 200.0 MiB, shmem 50.0 MiB, clean file 250.0 MiB, dirty 60.0 MiB, writeback 40.0 MiB; "
        "rss anon 3.0 MiB, file 2.0 MiB, shmem 1.0 MiB"
    )


def test_without_a_limit_the_own_group_and_without_a_controller_none(
    own: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_use, "binding_memory_group", lambda: None)
    monkeypatch.setattr(memory_use, "memory_groups", lambda: [GROUP])
    assert ov.memory_report().usage_bytes == 600 * MIB
    monkeypatch.setattr(memory_use, "memory_groups", list)
    report = ov.memory_report()
    told = {field.name for field in fields(report) if getattr(report, field.name) is not None}
    assert told == {"available_bytes", "rss_anon_bytes", "rss_file_bytes", "rss_shmem_bytes"}
    assert "limit none" in str(report)


def test_memory_that_is_taken_shows(spill_dir: Path) -> None:
    before = ov.memory_report()
    # Not from the heap, which may hold as much from a test before.
    held = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    taken = np.frombuffer(held, dtype=np.uint8)
    taken[:] = 1
    shared = torch.ones(16 * MIB, dtype=torch.uint8).share_memory_()
    spilled = ov.spill_tensor_to_disk(torch.ones(8 * MIB, dtype=torch.uint8), required=True)
    assert int(spilled.sum()) == 8 * MIB
    after = ov.memory_report()
    assert after.rss_anon_bytes - before.rss_anon_bytes >= 31 * MIB
    assert after.rss_shmem_bytes - before.rss_shmem_bytes >= 15 * MIB
    assert after.rss_file_bytes - before.rss_file_bytes >= 7 * MIB
    assert "\n" not in str(after) and "\n" not in repr(after)
    del taken, shared


@requires("memory_cgroup")
def test_a_real_limit_is_the_one_reported(run_python: Callable[..., Any]) -> None:
    script = """
    import overspill as ov
    report = ov.memory_report()
    print(report.limit_bytes, report.headroom_bytes < report.limit_bytes, report.anon_bytes > 0)
    """
    result = run_python(script, limit_bytes=512 * MIB).check()
    assert result.stdout.split() == [str(512 * MIB), "True", "True"]


@pytest.mark.parametrize("ask", ["memory_report", "available_memory_bytes"])
def test_without_a_descriptor_left_the_error_says_so(
    ask: str, run_python: Callable[..., Any]
) -> None:
    script = """
    import os, resource, sys
    import overspill as ov
    ask = getattr(ov, sys.argv[1])
    ask()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    try:
        ask()
    except RuntimeError as error:
        print(error.errno, error)
    """
    number, _, told = run_python(script, arguments=[ask]).check().stdout.partition(" ")
    assert int(number) == errno.EMFILE
    assert "Too many open files" in told and "ulimit -n" in told
