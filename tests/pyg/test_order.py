from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import SequentialSampler

from overspill.errors import InputError
from overspill.graph.dataset import Dataset, open_dataset
from overspill.pyg.order import InputBatches, grouped
from overspill.pyg.seeds import NodeInputs
from small_graphs import random_graph


@pytest.fixture
def ds(tmp_path: Path) -> Iterator[Dataset]:
    random_graph(tmp_path)
    yield open_dataset(tmp_path)


def batches(inputs: NodeInputs, size: int, **options: object) -> InputBatches:
    chosen = {"order": False, "drop_last": False, "seed": 1, **options}
    return InputBatches(inputs, batch_size=size, **chosen)  # type: ignore[arg-type]


def flat(batches: list[list[int]]) -> list[int]:
    return [seed for batch in batches for seed in batch]


def seeds_of(made: InputBatches) -> list[list[int]]:
    return [request.seeds.tolist() for request in made]


def test_all_nodes_come_in_order(ds: Dataset) -> None:
    made = batches(NodeInputs(ds, None), 150)
    assert len(made) == 3
    assert flat(seeds_of(made)) == list(range(400))
    assert [request.index for request in made] == [0, 1, 2]


def test_an_incomplete_batch_can_be_left_out(ds: Dataset) -> None:
    made = batches(NodeInputs(ds, None), 150, drop_last=True)
    assert len(made) == len(list(made)) == 2


def test_shuffling_changes_with_epoch_and_seed_alone(ds: Dataset) -> None:
    inputs = NodeInputs(ds, torch.arange(100, 200))
    made = batches(inputs, 30, order=True)
    first = seeds_of(made)
    assert first == seeds_of(made) == seeds_of(batches(inputs, 30, order=True))
    assert sorted(flat(first)) == list(range(100, 200)) != flat(first)
    made.epoch = 1
    assert seeds_of(made) != first != seeds_of(batches(inputs, 30, order=True, seed=2))
    assert sorted(flat(seeds_of(made))) == list(range(100, 200))


def test_an_iterator_keeps_the_epoch_it_began_in(ds: Dataset) -> None:
    made = batches(NodeInputs(ds, None), 100, order=True)
    begun = iter(made)
    made.epoch = 1
    later = next(iter(made))
    drawn = next(begun)
    assert (drawn.epoch, later.epoch) == (0, 1) and drawn.seeds.tolist() != later.seeds.tolist()


def test_input_ids_are_places_in_a_list_and_nodes_of_a_mask(ds: Dataset) -> None:
    mask = torch.zeros(400, dtype=torch.bool)
    mask[[5, 9]] = True
    (listed,) = batches(NodeInputs(ds, [9, 5]), 2)
    (masked,) = batches(NodeInputs(ds, mask), 2)
    assert (listed.seeds.tolist(), listed.input_ids.tolist()) == ([9, 5], [0, 1])
    assert (masked.seeds.tolist(), masked.input_ids.tolist()) == ([5, 9], [5, 9])


def test_a_given_sampler_decides_the_order(ds: Dataset) -> None:
    inputs = NodeInputs(ds, [30, 20, 10])
    made = batches(inputs, 2, order=SequentialSampler([2, 2, 2]))
    assert seeds_of(made) == [[30, 20], [10]] and len(made) == 2 and not made.once
    wild = batches(inputs, 2, order=SequentialSampler(range(5)))
    with pytest.raises(InputError, match="drawn by the sampler"):
        list(wild)


def test_repeats_are_noticed(ds: Dataset) -> None:
    assert NodeInputs(ds, None).distinct and NodeInputs(ds, [3, 1]).distinct
    assert not NodeInputs(ds, [3, 1, 3]).distinct


@pytest.mark.parametrize("nodes", [[400], [0, -1], np.array([2**40])])
def test_seeds_out_of_range_are_refused(ds: Dataset, nodes: object) -> None:
    with pytest.raises(InputError, match=r"input nodes of type 'node' are out of range.*400"):
        NodeInputs(ds, nodes)  # type: ignore[arg-type]


@pytest.mark.parametrize("nodes", [torch.ones(3, dtype=torch.bool), torch.rand(4), ["a"]])
def test_seeds_of_another_kind_are_refused(ds: Dataset, nodes: object) -> None:
    with pytest.raises((InputError, TypeError, ValueError)):
        NodeInputs(ds, nodes)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, 2.0, True, None])
def test_bad_batch_sizes_are_refused(ds: Dataset, size: int) -> None:
    with pytest.raises(InputError, match="batch_size"):
        batches(NodeInputs(ds, None), size)


@pytest.mark.parametrize(("workers", "size"), [(1, 3), (2, 3), (3, 2), (2, 50)])
def test_each_worker_is_told_its_group_where_it_begins(
    ds: Dataset, workers: int, size: int
) -> None:
    requests = batches(NodeInputs(ds, None), 31).requests(0)
    made = list(grouped(requests, size, workers))
    assert [request.index for request in made] == list(range(13))
    told: dict[int, list[int]] = {worker: [] for worker in range(workers)}
    announced: dict[int, list[int]] = {}
    for request in made:
        own = told[request.index % workers]
        assert request.group or not request.following
        if request.group:
            group = [held.index for held in request.group]
            assert announced.get(request.index % workers, group) == group
            announced[request.index % workers] = [held.index for held in request.following]
            assert request.group[0].index == request.index and len(request.group) <= size
            assert not own or own[-1] < request.index
            own += [held.index for held in request.group]
        assert request.index in own  # the worker that torch gives it has been told
        assert all(not held.group for held in request.group)
    assert sorted(index for own in told.values() for index in own) == list(range(13))
    assert not any(announced.values())


def test_a_fixed_set_of_batches_is_that_of_the_first_epoch(ds: Dataset) -> None:
    made = batches(NodeInputs(ds, None), 100, order=True, fixed=True)
    first = seeds_of(made)
    made.epoch = 3
    assert seeds_of(made) == first and [request.epoch for request in made] == [0] * 4


def test_inputs_are_told_apart_by_what_they_hold(ds: Dataset) -> None:
    def digest(nodes: object, **options: object) -> str:
        return NodeInputs(ds, nodes, **options).digest()  # type: ignore[arg-type]

    mask = torch.zeros(400, dtype=torch.bool)
    mask[:3] = True
    times = torch.arange(3)
    found = [
        digest(None),
        digest([0, 1, 2]),
        digest([0, 2, 1]),
        digest(mask),
        digest([0, 1, 2], times=times),
        digest([0, 1, 2], times=times + 1),
    ]
    assert len(set(found)) == len(found)
    assert digest(torch.arange(3)) == digest([0, 1, 2])
