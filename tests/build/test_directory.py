from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from naive import TINY
from overspill.build import directory as build_directory
from overspill.build.construct import construct
from overspill.build.describe import describe_build
from overspill.build.directory import MARKER_NAME, BuildDirectory, is_unfinished_build
from overspill.build.inputs import Inputs
from overspill.build.journal import listed_entries
from overspill.build.progress import Event
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


@pytest.mark.parametrize("killed", [False, True])
def test_a_dataset_that_was_published_while_another_build_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Seen before it was there, it must not be taken for what a build left behind."""
    real = build_directory.lock_marker

    def late(marker: Path) -> int:
        monkeypatch.setattr(build_directory, "lock_marker", real)
        with BuildDirectory(tmp_path) as first:
            first.file("x").write_text("x")
            listed = marker.read_bytes()
            first.publish(EMPTY)
        if killed:  # before it dropped its marker
            marker.write_bytes(listed)
        return real(marker)

    monkeypatch.setattr(build_directory, "lock_marker", late)
    with pytest.raises(OutputDirError, match="finished dataset"), BuildDirectory(tmp_path):
        pass
    assert read_manifest(tmp_path) == EMPTY and (tmp_path / "x").read_text() == "x"
    assert (tmp_path / MARKER_NAME).exists() == killed


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
        assert [json.loads(line) for line in lines[2:]] == ["nodes/", "nodes/node/", "nodes/node/x"]


def test_starting_over_removes_nothing_that_is_not_listed(tmp_path: Path) -> None:
    unfinished(tmp_path, "scratch/spool")
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputDirError, match=r"thesis\.tex"), BuildDirectory(tmp_path):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_starting_over_names_a_foreign_file_wherever_it_lies(tmp_path: Path) -> None:
    unfinished(tmp_path, "scratch/spool")
    (tmp_path / "scratch" / "mine").touch()
    with pytest.raises(OutputDirError, match="scratch/mine"), BuildDirectory(tmp_path):
        pass
    assert (tmp_path / "scratch" / "mine").exists()


@pytest.mark.parametrize(
    "name", ["manifest.json", "manifest.json.partial", "scratch/mine", "nodes/node/x"]
)
def test_a_file_dropped_where_the_build_writes_is_kept(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(OutputDirError, match=name), BuildDirectory(out) as directory:
        directory.file("scratch/spool")
        directory.file("nodes/node/other").touch()
        (out / name).write_text("mine")
        directory.file("nodes/node/x").write_text("x")
        directory.publish(EMPTY)
    assert [p.read_text() for p in out.rglob("*") if p.is_file()] == ["mine"]
    with pytest.raises(FormatError):
        read_manifest(out)


def test_a_file_dropped_beside_the_build_s_is_left_alone(tmp_path: Path) -> None:
    with BuildDirectory(tmp_path) as directory:
        (tmp_path / "note.txt").write_text("mine")
        directory.publish(EMPTY)
    assert read_manifest(tmp_path) == EMPTY and (tmp_path / "note.txt").read_text() == "mine"


@pytest.mark.parametrize("then", ["gone", "made again", "another build"])
@pytest.mark.parametrize("step", ["file", "publish"])
def test_a_directory_that_is_removed_during_the_build(tmp_path: Path, then: str, step: str) -> None:
    out = tmp_path / "out"
    removed = pytest.raises(OutputDirError, match="removed or replaced")
    with removed as caught, BuildDirectory(out) as directory:
        out.rename(tmp_path / "elsewhere")
        if then != "gone":
            out.mkdir()
        if then == "another build":
            (out / MARKER_NAME).write_bytes((tmp_path / "elsewhere" / MARKER_NAME).read_bytes())
        if step == "publish":
            directory.publish(EMPTY)
        elif then == "gone":
            directory.file("nodes/x")
        else:
            raise DiskRefusedError("the disk refused a file", path=str(out))
    assert caught.value.path == str(out) and caught.value.remedy
    assert not (out / "manifest.json").exists()


def test_an_error_is_not_hidden_by_the_removal_of_its_directory(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyError, match="the real one"), BuildDirectory(out):
        out.rename(tmp_path / "elsewhere")
        raise KeyError("the real one")


@pytest.mark.parametrize("below", ["", "a/b"])
def test_a_link_that_leads_nowhere(tmp_path: Path, below: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    out = tmp_path / "link" / below
    with pytest.raises(OutputDirError, match=r"link to .*nowhere, which does not exist") as caught:
        BuildDirectory(out).__enter__()
    assert caught.value.remedy and sorted(p.name for p in tmp_path.iterdir()) == ["link"]


@pytest.mark.parametrize("entry", ["../precious", "/etc/passwd", 7, "a/../../precious"])
def test_a_list_that_leaves_the_directory_is_refused(tmp_path: Path, entry: object) -> None:
    out = tmp_path / "out"
    unfinished(out)
    (tmp_path / "precious").write_text("mine")
    with (out / MARKER_NAME).open("a") as marker:
        marker.write(json.dumps(entry) + "\n")
    with pytest.raises(FormatError, match="remedy: remove the unfinished"), BuildDirectory(out):
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
    with pytest.raises(FormatError, match="link; remedy: remove the link"), BuildDirectory(out):
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
    with pytest.raises(OutputDirError, match="not a directory; remedy: choose"):
        BuildDirectory(tmp_path / "file").__enter__()


def test_array_files_are_listed_with_what_they_are_called_at_first(tmp_path: Path) -> None:
    with pytest.raises(KeyError), BuildDirectory(tmp_path / "out") as directory:
        with directory.array("nodes/x", dtype="int64", shape=(9,), at_most=True) as writer:
            writer.append(np.arange(3))
        assert (writer.result.path, writer.result.shape) == ("nodes/x", (3,))
        assert listed_entries(directory.path, "nodes/x") == ["nodes/x", "nodes/x.partial"]
        raise KeyError
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "phase", ["collect ids", "partition", "build rows", "copy node arrays", "publish"]
)
def test_a_build_whose_directory_is_removed_says_so(tmp_path: Path, phase: str) -> None:
    np.save(tmp_path / "e.npy", np.tile(np.arange(30), (2, 9)))
    np.save(tmp_path / "x.npy", np.zeros((30, 9)))
    out, left = tmp_path / "out", [phase]
    spec = describe_build(
        out, edges=tmp_path / "e.npy", ids="remap", node_features={"x": tmp_path / "x.npy"}
    )

    def remove(event: Event) -> None:
        if event["phase"] in left:
            left.clear()
            shutil.rmtree(out)

    with pytest.raises(OutputDirError, match="removed or replaced") as caught:
        construct(spec, TINY, inputs=Inputs.open(spec), send=remove)
    assert not left and caught.value.path == str(out) and not out.exists()
