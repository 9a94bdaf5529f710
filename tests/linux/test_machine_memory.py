"""The machine's memory, told as a group's."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from overspill.errors import UnavailableError
from overspill.linux.machine_memory import machine_memory

KIB = 1024
TOLD = """MemTotal:       1000 kB
MemFree:         300 kB
Buffers:          20 kB
Cached:          400 kB
Shmem:            50 kB
Dirty:            10 kB
Writeback:         5 kB
AnonPages:       150 kB
HugePages_Total:    7
"""


def test_its_kinds_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(TOLD)
    use = machine_memory(proc=tmp_path)
    assert (use.limit_bytes, use.usage_bytes) == (1000 * KIB, 700 * KIB)
    assert (use.anon_bytes, use.shmem_bytes) == (150 * KIB, 50 * KIB)
    assert (use.dirty_bytes, use.writeback_bytes) == (10 * KIB, 5 * KIB)
    assert use.clean_file_bytes == (400 + 20 - 50 - 15) * KIB
    assert use.headroom_bytes == (300 + 355) * KIB


def test_this_machine_tells() -> None:
    use = machine_memory()
    assert use.limit_bytes == psutil.virtual_memory().total
    assert 0 < use.anon_bytes < use.usage_bytes < use.limit_bytes


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"cannot be read: No such file.*mount /proc"):
        machine_memory(proc=tmp_path)
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    with pytest.raises(UnavailableError, match="does not tell its memory"):
        machine_memory(proc=tmp_path)
