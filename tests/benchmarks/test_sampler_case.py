"""The sampling cases run at a tiny size, count the pages that are needed, and put cores back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import fio, sampler
from benchmarks.harness import SpeedTarget, figure, run_case
from overspill.errors import UnavailableError
from overspill.graph.dataset import open_dataset
from overspill.graph.sampling import SamplingSpec
from overspill.graph.streams import stream_key
from typed_graphs import nodes_of, places_of


def not_built() -> None:
    raise UnavailableError("torch-sparse was not built: there is no g++")


@pytest.mark.parametrize("with_fio", [False, True])
def test_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_fio: bool) -> None:
    monkeypatch.setattr(sampler, "neighbor_sample", not_built)
    monkeypatch.setattr(fio, "is_installed", lambda: with_fio)
    monkeypatch.setattr(fio, "settled_rate", lambda _path: 1000.0)
    monkeypatch.setattr(fio, "random_read_rate", lambda _path, seconds: 50_000.0)
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    with sampler.opened(tmp_path, 256 << 10) as cases:
        warm, cold = (run_case(case, rounds=1) for case in cases)
    assert os.sched_getaffinity(0) == cores and torch.get_num_threads() == threads
    assert "there is no g++" in warm.case.absent[0] and not warm.case.targets
    assert all(sample.seconds > 0 for sample in warm.rounds[0].values())
    assert figure(cold.rounds, of=sampler.OURS, name="pages/s").low > 0
    assert {sampler.OURS, sampler.UNASKED} <= set(cold.rounds[0])
    against = [target for target in cold.case.targets if isinstance(target, SpeedTarget)]
    assert [target.against for target in against] == [sampler.LIMIT] * with_fio
    if with_fio:  # a page costs as much of its time as it takes fio
        assert cold.rounds[0][sampler.LIMIT].seconds == 2.0


def test_the_peer_is_held_to_the_same_batches_where_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def sample(*arguments: object) -> tuple[torch.Tensor, ...]:
        given.append(arguments)
        return (torch.arange(5), torch.arange(3), torch.arange(3), torch.arange(3))

    monkeypatch.setattr(sampler, "neighbor_sample", lambda: sample)
    graph = sampler._write(tmp_path / "graph", 64 << 10, ranked=True)
    case = sampler._in_memory(graph)
    assert [target.against for target in case.targets] == [sampler.TORCH_SPARSE]
    indptr, indices, seeds, *rest = given[0]
    assert indptr.dtype == indices.dtype == torch.int64
    assert rest == [list(sampler.FAN_OUTS), False, True]
    assert seeds.tolist() == sampler._seeds(open_dataset(graph.path), 0).tolist()


def test_the_pages_that_count_are_those_that_the_batch_lies_on(tmp_path: Path) -> None:
    graph = sampler._write(tmp_path / "graph", 2 << 20, ranked=False)
    dataset = open_dataset(graph.path)
    found = sampler._pages_of(dataset.sampler(sampler.FAN_OUTS), dataset, 3)
    spec = SamplingSpec(num_neighbors={sampler._EDGE_TYPE: sampler.FAN_OUTS}, edge_places=True)
    sampled = dataset.sampler(spec).sample(sampler._seeds(dataset, 3), key=stream_key(3))
    expanded = sampled.num_nodes() - sampled.nodes_per_hop["node"][-1]
    nodes = np.array(nodes_of(sampled)[:expanded])
    heads = [path.stat().st_size for path in graph.topology]
    heads = [heads[0] - 8 * (graph.num_nodes + 1), heads[1] - 4 * graph.num_edges]
    extents = {(heads[0] + 8 * (node + end)) // 4096 for node in nodes for end in (0, 1)}
    edges = {(heads[1] + 4 * place) // 4096 for place in places_of(sampled)}
    assert found == len(extents) + len(edges)
