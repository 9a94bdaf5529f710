"""Lines of kibibytes, and what else a file may hold."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from overspill.errors import UnavailableError
from overspill.linux.kernel_fields import read_fields


def test_only_lines_of_kibibytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "status"
    path.write_bytes(
        b"Name:\tpython \xff\nVmRSS:\t  12 kB\nThreads:\t3\nempty:\n\nRss (kB): 7 kB\n"
    )
    assert read_fields(path, wanted="x") == {"VmRSS": 12 * 1024, "Rss (kB)": 7 * 1024}


def test_an_error_says_what_was_wanted_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"^no view: No such file .*mount /proc") as caught:
        read_fields(tmp_path / "gone", wanted="no view")
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(UnavailableError, match="wait for it"):
        read_fields(tmp_path / "gone", wanted="x", remedies={errno.ENOENT: "wait for it"})
    with pytest.raises(UnavailableError, match="hidepid"):
        read_fields(tmp_path, wanted="no view")  # no file
