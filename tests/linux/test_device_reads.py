"""What the device read for this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from confined import make_cold
from overspill.linux.device_reads import device_bytes_read


def test_device_reads_come_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    assert device_bytes_read(proc=tmp_path) is None
    (tmp_path / "self" / "io").write_text("rchar: 5\nread_bytes: 4096\nwrite_bytes: 1\n")
    assert device_bytes_read(proc=tmp_path) == 4096
    (tmp_path / "self" / "io").write_text("rchar: 5\n")
    assert device_bytes_read(proc=tmp_path) is None


def test_a_cold_file_counts_and_a_cached_one_does_not(tmp_path: Path) -> None:
    if device_bytes_read() is None:
        pytest.skip("the kernel does not account for reads")
    path = tmp_path / "x"
    path.write_bytes(os.urandom(1 << 20))
    make_cold(path)
    before = device_bytes_read() or 0
    path.read_bytes()
    cold = device_bytes_read() or 0
    path.read_bytes()
    assert 1 << 20 <= cold - before < 2 << 20
    assert (device_bytes_read() or 0) - cold < 1 << 16
