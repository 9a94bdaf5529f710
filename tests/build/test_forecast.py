"""What a build says before it starts is what it then does, and takes of the disk."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naive import TINY
from overspill.build.construct import construct
from overspill.build.describe import Columns, describe_build
from overspill.build.forecast import Forecast, forecast_build
from overspill.build.inputs import Inputs
from overspill.build.journal import finished_steps, unfinished_bytes
from overspill.build.progress import Progress
from overspill.build.spec import BuildSpec
from overspill.errors import DiskRefusedError

SMALL = replace(
    TINY,
    chunk_edges=4096,
    ranges=16,
    block_bytes=4096,
    bucket_bytes=1 << 16,
    run_ids=4096,
    copy_bytes=1 << 14,
)
FOLLOWS, BUYS = ("user", "follows", "user"), ("user", "buys", "item")
NODES, EDGES = 3000, 40_000


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    random = np.random.default_rng(7)
    held = {
        "e": random.integers(0, NODES, (2, EDGES)),
        "w": random.random((EDGES, 4)),
        "x": random.random((NODES, 16)),
    }
    paths = {name: tmp_path / f"{name}.npy" for name in held}
    for name, array in held.items():
        np.save(paths[name], array)
    paths["csv"] = tmp_path / "e.csv"
    np.savetxt(paths["csv"], held["e"].T, "%d", delimiter=",", header="src,dst", comments="")
    lines = "\n".join(f"{node},{node * 2}" for node in range(NODES))
    paths["table"] = tmp_path / "n.csv"
    paths["table"].write_text(f"id,a\n{lines}\n")
    return paths


def forecast(spec: BuildSpec, **options: Any) -> Forecast:
    return forecast_build(spec, Inputs.open(spec), SMALL, **options)


def options_of(name: str, files: dict[str, Path]) -> dict[str, Any]:
    plain: dict[str, Any] = {"edges": files["e"], "num_nodes": NODES}
    typed = {
        "edges": {FOLLOWS: files["e"], BUYS: files["csv"]},
        "edge_features": {FOLLOWS: {"w": files["w"]}},
        "node_features": {"user": {"x": files["x"]}},
    }
    return {
        "plain": plain,
        "layouts": plain | {"layout": ("csc", "csr"), "edge_ids": True},
        "undirected": plain | {"to_undirected": True},
        "counted": plain | {"duplicates": "count"},
        "remapped": plain | {"ids": "remap", "num_nodes": None},
        "text": {"edges": files["csv"], "ids": "text"},
        "features": plain
        | {"node_features": {"x": files["x"]}, "edge_features": {"w": files["w"]}},
        "renumbered": plain | {"node_features": {"x": files["x"]}, "order": "degree"},
        "keyed": plain | {"node_features": {"a": Columns("a", of=files["table"], key="id")}},
        "typed": typed,
        "typed, renumbered": typed | {"order": "degree", "layout": ("csr",)},
        "lines": {"edges": files["csv"], "num_nodes": NODES},
    }[name]


NAMES = ["plain", "layouts", "undirected", "counted", "remapped", "text", "features", "renumbered"]
NAMES += ["keyed", "typed", "typed, renumbered", "lines"]


def held_on_disk(out: Path) -> int:
    total = 0
    for place, _, names in os.walk(out):
        for name in names:
            try:
                total += Path(place, name).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


@pytest.mark.parametrize("name", NAMES)
def test_the_passes_and_the_disk_of_a_build(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out, begun, peak = tmp_path / "out", [], [0]
    spec = describe_build(out, **options_of(name, files))
    told = forecast(spec)
    begin, reach = Progress.begin, Progress.reach

    def note(self: Progress, phase: str, total: int, unit: str) -> None:
        begun.append(phase)
        begin(self, phase, total, unit)

    def look(self: Progress, done: int) -> None:
        peak[0] = max(peak[0], held_on_disk(out))
        reach(self, done)

    monkeypatch.setattr(Progress, "begin", note)
    monkeypatch.setattr(Progress, "reach", look)
    construct(spec, SMALL, inputs=Inputs.open(spec), send=lambda _: None)
    assert [one.phase for one in told.passes] == begun[:-1] and begun[-1] == "publish"
    names = 256 << 10  # the journal, ends of blocks, what nobody could know is told as unknown
    if not told.unknown:
        assert peak[0] <= told.disk_bytes + names
    if name not in ("remapped", "text"):
        assert told.least_disk_bytes <= peak[0]
        assert abs(held_on_disk(out) - told.dataset_bytes) <= names
    assert told.disk_bytes <= 3 * peak[0] + names, "far more than is used"
    assert all(one.buckets for one in told.passes if one.phase == "build rows")


def test_what_is_known_and_what_is_estimated(tmp_path: Path, files: dict[str, Path]) -> None:
    known = forecast(describe_build(tmp_path / "o", **options_of("plain", files)))
    assert (known.edges, known.edges_known, known.unknown) == (EDGES, True, ())
    assert (known.files, known.input_bytes) == (1, files["e"].stat().st_size)
    lines = forecast(describe_build(tmp_path / "o", edges=files["csv"]))
    assert lines.edges == pytest.approx(EDGES, rel=0.05) and not lines.edges_known
    assert "node" in lines.unknown[0] and lines.least_disk_bytes < lines.disk_bytes
    text = forecast(describe_build(tmp_path / "o", **options_of("text", files)))
    assert any("text of the ids" in one for one in text.unknown)


def test_many_shards_are_sampled_by_their_share(tmp_path: Path, files: dict[str, Path]) -> None:
    for number in range(30):
        (tmp_path / f"part-{number:02}.csv").write_bytes(files["csv"].read_bytes())
    told = forecast(describe_build(tmp_path / "o", edges=str(tmp_path / "part-*.csv")))
    assert told.edges == pytest.approx(30 * EDGES, rel=0.05) and told.files == 30


@pytest.mark.parametrize("name", ["plain", "lines"])
def test_a_build_is_refused_by_what_it_hardly_is_less_than(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    spec = describe_build(tmp_path / "out", **options_of(name, files))
    least = forecast(spec).least_disk_bytes
    monkeypatch.setattr("overspill.build.forecast.free_disk_bytes", lambda _: least - 1)
    told = forecast(spec)
    with pytest.raises(DiskRefusedError) as caught:
        told.require_disk(spec.out)
    assert caught.value.needed_bytes == least <= told.disk_bytes
    assert caught.value.available_bytes == least - 1 and caught.value.remedy
    with pytest.raises(DiskRefusedError):
        construct(spec, SMALL, inputs=Inputs.open(spec), send=lambda _: None)
    assert not (tmp_path / "out").exists()
    # What an unfinished build in the same place holds is given back, or used.
    forecast(spec, held_bytes=1).require_disk(spec.out)


def test_an_unfinished_build_counts_as_room(
    tmp_path: Path, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    spec = describe_build(out, **options_of("features", files))
    assert (unfinished_bytes(out), finished_steps(out)) == (0, None)
    reach = Progress.reach
    monkeypatch.setattr("overspill.build.directory.BuildDirectory._undo", lambda *_: None)

    def stop(self: Progress, done: int) -> None:
        reach(self, done)
        if self._phase == "copy node arrays":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Progress, "reach", stop)
        construct(spec, SMALL, inputs=Inputs.open(spec), send=lambda _: None)
    held = unfinished_bytes(out)
    assert finished_steps(out) == 2 and 0 < held <= held_on_disk(out)
    free = forecast(spec).least_disk_bytes - held
    monkeypatch.setattr("overspill.build.forecast.free_disk_bytes", lambda _: free)
    again = describe_build(out, **options_of("features", files), resume=True)
    construct(again, SMALL, inputs=Inputs.open(again), send=lambda _: None)
    assert (out / "manifest.json").exists()


def test_a_journal_that_cannot_be_read_counts_as_nothing(tmp_path: Path) -> None:
    marker = tmp_path / ".overspill-build"
    marker.write_text('{"format": "overspill-build", "version": 1}\n"../x"\n')
    assert (unfinished_bytes(tmp_path), finished_steps(tmp_path)) == (0, 0)
