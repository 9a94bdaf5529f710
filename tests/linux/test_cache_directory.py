from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from overspill.linux.cache_directory import private_cache_directory


@pytest.mark.parametrize("trap", ["writable by others", "link", "file"])
def test_a_directory_that_others_could_fill_is_not_used(tmp_path: Path, trap: str) -> None:
    private = private_cache_directory(tmp_path)
    assert private is not None and private.stat().st_mode & 0o777 == 0o700
    assert private_cache_directory(tmp_path) == private
    if trap == "writable by others":
        private.chmod(0o770)
    else:
        private.rmdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        if trap == "link":
            private.symlink_to(tmp_path / "elsewhere")
        else:
            private.touch(mode=0o600)
    assert private_cache_directory(tmp_path) is None


def test_a_missing_parent_is_no_directory(tmp_path: Path) -> None:
    assert private_cache_directory(tmp_path / "gone") is None


def test_it_lies_in_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert private_cache_directory() == tmp_path / f"overspill-kernels-{os.geteuid()}"


@pytest.mark.requires("root")
def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    private = private_cache_directory(tmp_path)
    assert private is not None
    os.chown(private, 65534, -1)
    assert private_cache_directory(tmp_path) is None
