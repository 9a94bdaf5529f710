"""The benchmarks of large builds at a tiny size: they build what they say and leave nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import overspill as ov
from benchmarks import build_large, build_memory, build_memory_job
from benchmarks.build import DEVICE, OURS, PLAIN
from benchmarks.harness import Alike, SpeedTarget, figure, run_case
from overspill.errors import DiskRefusedError

pytestmark = pytest.mark.requires("memory_cgroup")


def test_a_large_build_beside_plain_io(tmp_path: Path) -> None:
    with build_large.opened(tmp_path, 16 * 5000) as [case]:
        result = run_case(case, rounds=1)
    assert case.name == "build 5,000 edges, 500 nodes from npy"
    assert set(result.rounds[0]) == {OURS, PLAIN, DEVICE} and case.limit == DEVICE
    assert case.targets[0] == SpeedTarget(of=OURS, against=DEVICE, at_least=0.75)
    assert figure(result.rounds, of=OURS, name="peak anonymous MiB").low > 10
    assert list(tmp_path.iterdir()) == []


def test_peaks_of_every_size_and_number_of_threads(tmp_path: Path) -> None:
    with build_memory.opened(tmp_path, 16 * 50_000) as [case]:
        result = run_case(case, rounds=1)
    sizes, threads = case.targets
    assert isinstance(sizes, Alike) and isinstance(threads, Alike)
    assert sizes.of == ("1,000 edges", "10,000 edges", "50,000 edges")
    assert threads.of == ("1,000 edges, one thread", "1,000 edges, 8 threads")
    assert (sizes.within, threads.within) == (0.1, 0.2)
    for name in (*sizes.of, *threads.of):
        peak = figure(result.rounds, of=name, name=build_memory.PEAK).low
        assert 10 < peak <= figure(result.rounds, of=name, name="MiB planned").low
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", [build_large, build_memory])
def test_a_disk_without_room_is_refused_and_at_most_16_gib_are_asked_for(
    module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.place.free_disk_bytes", lambda _: 0)
    with pytest.raises(DiskRefusedError) as caught, module.opened(tmp_path):  # type: ignore[attr-defined]
        pass
    assert caught.value.needed_bytes is not None
    assert 10 << 30 < caught.value.needed_bytes <= 16 << 30
    assert list(tmp_path.iterdir()) == []


def test_what_the_job_builds(tmp_path: Path) -> None:
    summary = build_memory_job.main(str(tmp_path / "out"), 300_001, None)
    assert (summary["nodes"], summary["edges"]) == (30_000, 300_001)
    edges = np.concatenate(list(build_memory_job.made_edges(300_001, 30_000)), axis=1)
    assert edges.shape == (2, 300_001) and edges.min() >= 0 and edges.max() < 30_000
    assert len(np.unique(edges[0])) > 29_000
    ds = ov.open_dataset(tmp_path / "out")
    assert (ds.num_nodes, ds.num_edges) == (30_000, 300_001)
