"""Seeds are split by the machines that serve them, evenly, and none is lost."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from confined import run_script
from overspill.cluster.seed_split import places_of_rank, split_by_owner
from overspill.errors import InputError
from seed_ranks import served, trained


def own(dataset: Any, ids: torch.Tensor, machine: str) -> torch.Tensor:
    homes = dataset.machines_of_nodes(ids)
    return torch.tensor([dataset.addresses[home] == machine for home in homes])


SPLITS = st.tuples(
    st.lists(st.integers(0, 5), max_size=60),  # the part of each seed
    st.lists(st.sampled_from("abc"), min_size=6, max_size=6),  # the machine of each part
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=7),  # of each rank
)


@given(SPLITS)
def test_every_seed_goes_to_one_rank_and_shares_differ_by_one(
    split: tuple[list[int], list[str], list[str]],
) -> None:
    parts, machines, ranks = split
    dataset = served(range(10, 70, 10), machines)
    ids = torch.tensor(parts, dtype=torch.int64) * 10
    shares = split_by_owner(dataset, ids, ranks, equal=False)
    assert sorted(torch.cat(shares).tolist()) == list(range(len(parts)))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    # Of a machine's seeds as many stay there as its ranks' shares hold.
    for machine in set(ranks):
        here = [rank for rank, name in enumerate(ranks) if name == machine]
        stayed = sum(int(own(dataset, ids[shares[rank]], machine).sum()) for rank in here)
        there = int(own(dataset, ids, machine).sum())
        assert stayed == min(there, sum(sizes[rank] for rank in here))


@given(SPLITS)
def test_equal_shares_are_equal_and_repeat_one_seed_at_most(
    split: tuple[list[int], list[str], list[str]],
) -> None:
    parts, machines, ranks = split
    dataset = served(range(10, 70, 10), machines)
    ids = torch.tensor(parts, dtype=torch.int64) * 10
    once = split_by_owner(dataset, ids, ranks, equal=False)
    shares = split_by_owner(dataset, ids, ranks)
    assert {len(share) for share in shares} == {-(-len(parts) // len(ranks))}
    for share, before in zip(shares, once, strict=True):
        assert share[: len(before)].tolist() == before.tolist()
        assert len(share) - len(before) <= 1


def test_ranks_of_one_machine_share_its_seeds_in_order() -> None:
    dataset = served([4, 8], ["a", "b"])
    shares = split_by_owner(dataset, [7, 6, 0, 1, 5, 3, 2, 4], ["a", "b", "a", "b"])
    assert [share.tolist() for share in shares] == [[2, 3], [0, 1], [5, 6], [4, 7]]


def test_where_all_seeds_lie_in_one_part_every_rank_has_work() -> None:
    dataset = served([100, 200], ["a", "b"])
    first, second = split_by_owner(dataset, np.arange(7), ["a", "b"])
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 4])


def test_what_cannot_be_split_is_refused() -> None:
    dataset = served([4, 8], ["a", "b"])
    with pytest.raises(InputError, match="no rank"):
        split_by_owner(dataset, [1], [])
    with pytest.raises(InputError, match="not initialised"):
        places_of_rank(dataset, [1])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What two ranks told: their seeds, what they trained, and how they refused."""
    place = tmp_path_factory.mktemp("ranks")
    script = "import seed_ranks, sys\nseed_ranks.run_two(sys.argv[1])"
    env = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    run_script(script, place, arguments=[place], env=env).check()
    return [json.loads((place / f"rank-{rank}").read_text()) for rank in range(2)]


def test_ranks_find_their_shares_together(told: list[list[Any]]) -> None:
    assert [seeds for seeds, *_ in told] == [[4, 5, 6, 3], [0, 1, 2, 0]]


def test_ranks_with_uneven_seeds_train_one_model_as_one_process_would(
    told: list[list[Any]],
) -> None:
    (first, one, _), (second, other, _) = told
    assert one == other
    # Batch by batch both halves at once: their gradient is the mean of what the ranks have.
    halves = (torch.tensor(seeds).split(3) for seeds in (first, second))
    together = [torch.cat(pair) for pair in zip(*halves, strict=True)]
    assert len(together) == 2
    assert one == pytest.approx(trained(together), abs=1e-5)


def test_ranks_with_other_seeds_refuse_together(told: list[list[Any]]) -> None:
    assert "rank 1 splits other seeds than rank 0" in told[0][2]
    assert told[1][2] == told[0][2]
