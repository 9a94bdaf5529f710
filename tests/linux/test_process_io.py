"""What processes made devices do, and which processes lie below one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from overspill.linux.process_io import DeviceBytes, descendants, device_bytes


def test_the_kernels_account_is_read(tmp_path: Path) -> None:
    assert device_bytes(7, proc=tmp_path) is None
    (tmp_path / "7").mkdir()
    account = tmp_path / "7" / "io"
    account.write_text("rchar: 5\nread_bytes: 4096\nwrite_bytes: 900\ncancelled_write_bytes: 100\n")
    assert device_bytes(7, proc=tmp_path) == DeviceBytes(4096, 800)
    account.write_text("read_bytes: 1\nwrite_bytes: 5\ncancelled_write_bytes: 100\n")
    assert device_bytes(7, proc=tmp_path) == DeviceBytes(1, 0)  # cut what another wrote
    account.write_text("rchar: 5\n")
    assert device_bytes(7, proc=tmp_path) is None


@pytest.fixture
def family() -> object:
    """A shell, with a shell below it, with a cat below that: their numbers, outermost first."""
    # What is put in the background has no standard input but by another name.
    script = "exec 3<&0; sh -c 'echo $$; cat <&3 & echo $!; wait' & echo $!; wait"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        told = {int(shell.stdout.readline()) for _ in range(3)}
        yield shell.pid, told
        shell.communicate()


def test_descendants_by_the_kernels_list_and_without(
    family: tuple[int, set[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root, below = family
    found = descendants(root)
    assert set(found) == below and len(found) == len(below) == 2
    assert found[0] == psutil.Process(found[1]).ppid()  # parents first
    assert set(found) <= set(descendants(os.getpid()))
    # A kernel that lists no children.
    assert set(descendants(root, proc=tmp_path)) == below
    assert descendants(1 << 29) == []


def test_a_thread_that_ends_meanwhile_has_no_children(tmp_path: Path) -> None:
    for thread, children in (("5", "6 "), ("9", None)):
        place = tmp_path / "5" / "task" / thread
        place.mkdir(parents=True)
        if children is not None:
            (place / "children").write_text(children)
    assert descendants(5, proc=tmp_path) == [6]
