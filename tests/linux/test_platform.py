"""Other systems import everything, and calls that need Linux say so."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import overspill.linux
from overspill.errors import UnavailableError
from overspill.linux import blocks, fetch, identity, libc, mapping, mounts, pages
from overspill.settings import child_environment

ELSEWHERE = """
import os, sys
import numpy, psutil, ctypes, mmap, subprocess, multiprocessing, concurrent.futures, logging, socket
sys.platform = "win32"
sys.modules["fcntl"] = None
for name in ("sched_getaffinity", "posix_fadvise", "pidfd_open", "statvfs"):
    delattr(os, name)
for name in sys.argv[1:]:
    __import__(f"overspill.linux.{name}")
from overspill.linux import cgroups, confine, fetch, libc, mounts
assert not libc.SUPPORTED
assert fetch.fetch_method() == "pread"
assert cgroups.usable_cpus() >= 1
print("imported")
"""


def test_every_module_imports_elsewhere() -> None:
    names = [path.stem for path in Path(overspill.linux.__file__).parent.glob("[a-z]*.py")]
    assert len(names) >= 13
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, *names],
        capture_output=True,
        text=True,
        env=child_environment(),
    )
    assert (done.stdout, done.stderr) == ("imported\n", "")


@pytest.mark.parametrize(
    "call",
    [
        lambda path: blocks.reserve_blocks(0, 10, path="x"),
        lambda path: blocks.start_writeback(0, 0, 10),
        lambda path: blocks.finish_writeback(0, 0, 10),
        lambda path: mapping.map_file(path, nbytes=0),
        lambda path: pages.advise(4096, 10, "random"),
        lambda path: pages.resident_bytes(4096, 10),
    ],
    ids=["reserve", "start", "finish", "map", "advise", "resident"],
)
def test_calls_that_need_linux_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(libc, "SUPPORTED", False)
    monkeypatch.setattr(libc, "_functions", {})
    with pytest.raises(UnavailableError, match="needs 64-bit Linux"):
        call(tmp_path)


def test_what_can_be_told_elsewhere_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(libc, "SUPPORTED", False)
    held = tmp_path.stat()
    assert identity.identify_file(tmp_path).inode == held.st_ino
    assert mounts.filesystem_type(tmp_path, proc=tmp_path / "nowhere") == "unknown"
    fetch.fetch_method.cache_clear()
    assert fetch.fetch_method() == "fadvise"
    fetch.fetch_method.cache_clear()


def test_a_c_library_without_the_function_is_a_missing_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(libc._ARGUMENTS, "no_such_function", ())
    with pytest.raises(OSError, match="has no no_such_function") as caught:
        libc.call("no_such_function")
    assert caught.value.errno == errno.ENOSYS
