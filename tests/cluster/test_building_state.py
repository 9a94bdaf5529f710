"""What a machine takes for staged, and what stages leave behind; no cluster is needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("ray")

from overspill.build.describe import describe_build
from overspill.build.parting.split_spec import OwnersSpec, SplitSpec, Window
from overspill.cluster.building import looking, staging
from overspill.cluster.building.job import WORK_NAME, JobPlan, PlannedSplit
from overspill.cluster.building.nodes import BuildMachine
from overspill.cluster.building.parts import array_file
from overspill.cluster.building.staging import DONE_NAME, Survey, read_report, stage
from overspill.cluster.building.standing import Standing

NODES, EDGES, PLAN = 300, 5000, "a" * 32


def sent(_: float) -> None:
    """Who follows a task's progress."""


@pytest.fixture
def split(tmp_path: Path) -> PlannedSplit:
    edges = tmp_path / "edges.npy"
    np.save(edges, np.random.default_rng(0).integers(0, NODES, (2, EDGES)))
    np.save(tmp_path / "w.npy", np.zeros((EDGES, 3), np.float32))
    windows = [
        Window(path=str(path), nbytes=stat.st_size, modified_ns=stat.st_mtime_ns)
        for path in (edges, tmp_path / "w.npy")
        for stat in [path.stat()]
    ]
    owners = OwnersSpec(count=NODES, num_parts=2, bounds=(0, 100, NODES))
    described = describe_build(
        tmp_path, edges=edges, edge_features={"w": tmp_path / "w.npy"}, num_nodes=NODES
    )
    spec = SplitSpec(
        number=0,
        plan=PLAN,
        edge=described.edges[0],
        windows=(windows[0],),
        sources=owners,
        targets=owners,
        layouts=("csc",),
        edge_ids=True,
        rows=EDGES,
        arrays={"w": windows[1]},
    )
    return PlannedSplit(spec=spec, machines=(0,), nbytes=windows[0].nbytes)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("name", ["csc-00001.edges", "csc-00000.ids", "csc-00001.rows.w"])
@pytest.mark.parametrize("harm", [Path.unlink, cut])
def test_a_split_whose_files_went_is_staged_anew(
    split: PlannedSplit, tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    place = tmp_path / "split"
    report = stage(str(place), split, send=sent)
    assert read_report(place, PLAN) == report
    content = (place / name).read_bytes()
    harm(place / name)
    assert read_report(place, PLAN) is None
    assert stage(str(place), split, send=sent) == report
    assert (place / name).read_bytes() == content


def test_what_is_staged_anew_has_no_marker_until_it_is_whole(
    split: PlannedSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "split"
    stage(str(place), split, send=sent)
    (place / "csc-00000.edges").unlink()

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(staging, "stage_split", killed)
    with pytest.raises(KeyboardInterrupt):
        stage(str(place), split, send=sent)
    assert not (place / DONE_NAME).exists()


def test_machines_that_share_a_directory_leave_it_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    (out / WORK_NAME).mkdir(parents=True)
    rmdir = Path.rmdir

    def second(directory: Path) -> None:
        rmdir(directory)  # by another machine, at the same moment
        rmdir(directory)

    monkeypatch.setattr(Path, "rmdir", second)
    looking.leave(str(out), "machine-a", send=sent)
    assert not out.exists()


def test_what_others_hold_stays_where_a_build_was_refused(tmp_path: Path) -> None:
    work = tmp_path / "out" / WORK_NAME
    work.mkdir(parents=True)
    for token in ("machine-a", "machine-b"):
        (work / token).touch()
    looking.leave(str(tmp_path / "out"), "machine-a", send=sent)
    assert [entry.name for entry in work.iterdir()] == ["machine-b"]


def test_a_machine_that_came_up_later_stages_one_split_at_a_time() -> None:
    standing = Standing.__new__(Standing)
    spec = describe_build("/out", edges="/e.npy")
    standing.plan = cast("JobPlan", type("Plan", (), {"num_parts": 2, "spec": spec}))
    standing._up = {0: BuildMachine("10.0.0.1", "a", 3)}
    standing._surveys = {0: Survey({}, {}, 8 << 30)}
    most = standing._most(None)
    assert (most("10.0.0.1"), most("10.0.0.2")) == (3, 1)


def test_names_with_dots_have_files_of_their_own() -> None:
    assert array_file(0, "a.b", "c") != array_file(0, "a", "b.c")
