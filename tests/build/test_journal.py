"""What a build inside of another leaves is removed by its own list, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overspill.build.directory import MARKER_NAME, BuildDirectory
from overspill.errors import OutputDirError
from overspill.linux import locks
from overspill.storage.manifest import Manifest
from small_graphs import random_graph


def killed(path: Path) -> BuildDirectory:
    directory = BuildDirectory(path)
    directory.__enter__()
    return directory


def test_several_files_are_listed_by_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyError), BuildDirectory(tmp_path / "out") as directory:
        syncs: list[int] = []
        monkeypatch.setattr(os, "fsync", syncs.append)
        paths = directory.files(f"a/b{number}/x" for number in range(9))
        assert len(syncs) == 2, "the directories before they are made, then the files"
        assert paths == [tmp_path / "out" / f"a/b{number}/x" for number in range(9)]
        for path in paths:
            path.touch()
        raise KeyError
    assert not (tmp_path / "out").exists()


def test_of_several_files_one_that_is_there_is_refused_before_any_is_listed(
    tmp_path: Path,
) -> None:
    with pytest.raises(OutputDirError, match="mine"), BuildDirectory(tmp_path) as directory:
        (tmp_path / "mine").touch()
        directory.files(["other", "mine"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("inner", ["unfinished", "finished", "half removed"])
def test_a_nested_build_goes_with_the_one_around_it(tmp_path: Path, inner: str) -> None:
    outer = killed(tmp_path / "out")
    nested = outer.nested()
    if inner == "unfinished":
        within = killed(nested)
        within.file("nodes/x").write_text("half")
        within._give_up_claim()
    else:
        random_graph(nested)
        if inner == "half removed":
            (nested / "node.x").unlink()
    outer._give_up_claim()
    with BuildDirectory(tmp_path / "out"):
        assert [path.name for path in (tmp_path / "out").iterdir()] == [MARKER_NAME]


def test_a_nested_build_that_still_runs_is_left_alone(tmp_path: Path) -> None:
    outer = killed(tmp_path / "out")
    within = killed(outer.nested())
    within.file("x").write_text("half")
    outer._give_up_claim()
    with pytest.raises(OutputDirError, match="another build"):
        killed(tmp_path / "out")
    assert (within.path / "x").exists()
    within._give_up_claim()


def test_a_dataset_that_somebody_put_elsewhere_is_not_removed(tmp_path: Path) -> None:
    outer = killed(tmp_path / "out")
    outer.file("nodes/x")
    random_graph(tmp_path / "out" / "nodes")
    outer._give_up_claim()
    before = sorted((tmp_path / "out" / "nodes").iterdir())
    with pytest.raises(OutputDirError, match="did not make"):
        killed(tmp_path / "out")
    assert sorted((tmp_path / "out" / "nodes").iterdir()) == before


def synced_directories(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The directories that were synced, as they are."""
    found: set[str] = set()
    real = os.fsync

    def watched(fd: int) -> None:
        place = Path(f"/proc/self/fd/{fd}").readlink()
        if place.is_dir():
            found.add(str(place))
        real(fd)

    monkeypatch.setattr(os, "fsync", watched)
    return found


def test_a_finished_step_has_durable_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is durable in a directory that is not would be gone after a crash."""
    found, out = synced_directories(monkeypatch), tmp_path / "new/out"
    with pytest.raises(KeyError), BuildDirectory(out) as directory:
        directory.file("edges/a/to/x").touch()
        assert not found
        directory.finish("one", {})
        made = [tmp_path, tmp_path / "new", out, out / "edges", out / "edges/a"]
        assert found == {str(place) for place in made}
        found.clear()
        directory.file("nodes/a/x").touch()
        directory.file("edges/a/to/y").touch()
        directory.finish("two", {})
        assert found == {str(out), str(out / "nodes")}, "what was new alone"
        raise KeyError
    assert not (tmp_path / "new").exists()


def test_a_published_build_has_durable_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out = synced_directories(monkeypatch), tmp_path / "out"
    with BuildDirectory(out) as directory:
        directory.file("nodes/a/x").touch()
        directory.publish(Manifest("0" * 32, {}, {}))
    assert found == {str(tmp_path), str(out), str(out / "nodes")}


def test_a_directory_whose_parent_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be written all the same."""
    found, real = synced_directories(monkeypatch), os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and real(path, mode))
    with BuildDirectory(tmp_path / "out") as directory:
        directory.publish(Manifest("0" * 32, {}, {}))
    assert found == {str(tmp_path / "out")}


def test_a_marker_that_went_while_it_was_locked_is_another_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / MARKER_NAME

    def lock(*_: object, **__: object) -> bool:
        marker.unlink()  # whoever had the lock has published
        return True

    monkeypatch.setattr(locks, "lock_exclusive", lock)
    with pytest.raises(OutputDirError, match="another build is writing"), BuildDirectory(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
