from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from overspill.build.directory import MARKER_NAME, BuildDirectory, is_unfinished_build
from overspill.errors import DiskRefusedError, FormatError, OutputDirError
from overspill.storage.manifest import Manifest, read_manifest

EMPTY = Manifest("0" * 32, {}, {})


class Killed(BaseException):
    """Stands for a process that ends without leaving any block."""


def unfinished(path: Path, *files: str) -> None:
    """What a killed build leaves."""
    directory = BuildDirectory(path)
    directory.__enter__()
    for name in files:
        directory.file(name).write_text("half")
    directory._give_up_claim()


@pytest.mark.parametrize("before", ["absent", "empty", "deeply absent"])
def test_publishing_makes_a_dataset(tmp_path: Path, before: str) -> None:
    out = tmp_path / "a" / "b" if before == "deeply absent" else tmp_path / "out"
    if before == "empty":
        out.mkdir()
    with BuildDirectory(out) as directory:
        assert is_unfinished_build(out)
        directory.file("nodes/node/x").write_text("x")
        directory.file("scratch/spool").write_text("s")
        (out / "scratch" / "spool").unlink()
        directory.publish(EMPTY)
    assert read_manifest(out) == EMPTY
    assert sorted(p.name for p in out.iterdir()) == ["manifest.json", "nodes"]


@pytest.mark.parametrize("existed", [True, False])
def test_an_error_undoes_everything(tmp_path: Path, existed: bool) -> None:
    out = tmp_path / "deep" / "out"
    if existed:
        out.mkdir(parents=True)
    with pytest.raises(KeyError), BuildDirectory(out) as directory:
        directory.file("nodes/node/x").write_text("x")
        directory.file("scratch/never made")
        raise KeyError
    assert list(out.iterdir()) == [] if existed else not (tmp_path / "deep").exists()


def test_an_unfinished_build_starts_over(tmp_path: Path) -> None:
    unfinished(tmp_path, "nodes/node/x", "scratch/spool", "manifest.json.partial")
    assert (tmp_path / "scratch" / "spool").exists()
    with BuildDirectory(tmp_path) as directory:
        assert [p.name for p in tmp_path.iterdir()] == [MARKER_NAME]
        directory.publish(EMPTY)


@pytest.mark.parametrize(
    "cut", [b"", b'{"form', b'{"format": "overspill-build", "version": 1}\n"a']
)
def test_a_marker_cut_by_a_crash(tmp_path: Path, cut: bytes) -> None:
    (tmp_path / MARKER_NAME).write_bytes(cut)
    with BuildDirectory(tmp_path) as directory:
        directory.publish(EMPTY)


def test_a_disk_that_takes_a_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    with BuildDirectory(tmp_path) as directory, monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, line: real(fd, line[:3]))
        directory.file("nodes/node/x")
        lines = (tmp_path / MARKER_NAME).read_text().splitlines()
        assert [json.loads(line) for line in lines[1:]] == ["nodes/", "nodes/node/", "nodes/node/x"]


def test_starting_over_removes_nothing_that_is_not_listed(tmp_path: Path) -> None:
    unfinished(tmp_path, "scratch/spool")
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputDirError, match=r"thesis\.tex"), BuildDirectory(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("entry", ["../precious", "/etc/passwd", 7, "a/../../precious"])
def test_a_list_that_leaves_the_directory_is_refused(tmp_path: Path, entry: object) -> None:
    out = tmp_path / "out"
    unfinished(out)
    (tmp_path / "precious").write_text("mine")
    with (out / MARKER_NAME).open("a") as marker:
        marker.write(json.dumps(entry) + "\n")
    with pytest.raises(FormatError), BuildDirectory(out):
        pass
    assert (tmp_path / "precious").exists()


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    unfinished(out, "nodes/x")
    elsewhere.mkdir()
    (elsewhere / "x").write_text("mine")
    (out / "nodes" / "x").unlink()
    (out / "nodes").rmdir()
    (out / "nodes").symlink_to(elsewhere)
    with pytest.raises(FormatError, match="link"), BuildDirectory(out):
        pass
    assert (elsewhere / "x").read_text() == "mine"


@pytest.mark.parametrize("held", ["file", "foreign", "dataset", "foreign marker"])
def test_anything_else_is_refused_and_kept(tmp_path: Path, held: str) -> None:
    out = tmp_path / "out"
    if held == "file":
        out.write_text("not a directory")
    elif held == "dataset":
        with BuildDirectory(out) as directory:
            directory.publish(EMPTY)
    else:
        out.mkdir()
        (out / (MARKER_NAME if held == "foreign marker" else "x")).write_text('{"mine": 1}\n')
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with pytest.raises(OutputDirError), BuildDirectory(out):
        pass
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_two_builds_do_not_meet(tmp_path: Path) -> None:
    with BuildDirectory(tmp_path) as first:
        first.file("x").write_text("x")
        with pytest.raises(OutputDirError, match="another build"), BuildDirectory(tmp_path):
            pass
        assert (tmp_path / "x").exists()
        first.publish(EMPTY)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskRefusedError), BuildDirectory(tmp_path / "file" / "out"):
        pass
