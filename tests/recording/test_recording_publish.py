"""Reports are there whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from overspill.errors import DiskRefusedError, InputError
from overspill.recording.publish import publish_text, require_writable_report


def test_a_report_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    publish_text(path, "first")
    publish_text(path, "second, \udcff and é", durable=True)
    assert path.read_text() == "second, \\udcff and é"
    assert list(tmp_path.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_disk_that_refuses_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    publish_text(path, "old")

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskRefusedError, match=r"No space left.*make room") as caught:
        publish_text(path, "new", durable=True)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_what_no_report_could_be_published_at_is_refused_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, error, told in (
        (tmp_path / "missing" / "x.html", DiskRefusedError, "make the directory first"),
        (tmp_path / "file" / "x.html", DiskRefusedError, "below a directory"),
        (tmp_path / ("x" * 300), DiskRefusedError, "shorter name"),
        (tmp_path, InputError, "is not a file"),
        ("/dev/null", InputError, "is not a file"),
        ("a\0b", InputError, "NUL"),
        (3.5, InputError, "not a path"),
    ):
        with pytest.raises(error, match=told):
            require_writable_report(path)  # type: ignore[arg-type]
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_trying_leaves_nothing_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    longest = "x" * 250 + ".html"
    assert require_writable_report(longest) == tmp_path / longest
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept").write_text("old")
    assert require_writable_report("kept") == tmp_path / "kept"
    assert (tmp_path / "kept").read_text() == "old"
