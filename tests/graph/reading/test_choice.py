"""Which rows are worth their memory, against a naive choice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from overspill.errors import InputError
from overspill.graph.reading.choice import share_budget
from overspill.graph.reading.degrees import DegreeUses
from overspill.graph.reading.given_counts import GivenUses
from reading_graphs import degrees, write_market


@dataclass
class Held:
    """Counts in pieces of odd sizes."""

    counts: np.ndarray
    piece: int = 7

    def pieces(self) -> Iterator[np.ndarray]:
        for first in range(0, len(self.counts), self.piece):
            yield self.counts[first : first + self.piece].astype(np.int64)

    def forget(self) -> None:
        """Nothing is kept."""


def naive_choice(
    counts: dict[str, np.ndarray], costs: dict[str, int], budget: int
) -> dict[str, list[int]]:
    """By falling uses a byte; of equal ones the type given first, and the first ids."""
    ranked = sorted(
        (-held[i] / costs[name], place, i, name)
        for place, (name, held) in enumerate(counts.items())
        for i in range(len(held))
        if held[i]
    )
    chosen: dict[str, list[int]] = {name: [] for name in counts}
    for _, _, i, name in ranked:
        budget -= costs[name]
        if budget < 0:
            break
        chosen[name].append(i)
    return {name: sorted(ids) for name, ids in chosen.items()}


@pytest.mark.parametrize("budget", [0, 1, 50, 333, 1000, 10**6])
def test_the_most_used_a_byte_are_chosen(budget: int) -> None:
    rng = np.random.default_rng(0)
    counts = {"a": rng.integers(0, 9, 200), "b": rng.integers(0, 400, 90), "c": np.zeros(3, int)}
    costs = {"a": 5, "b": 64, "c": 1}
    chosen = share_budget({name: Held(held) for name, held in counts.items()}, costs, budget)
    expected = naive_choice(counts, costs, budget)
    assert {name: ids.tolist() for name, ids in chosen.items()} == expected


def test_large_counts_are_told_apart() -> None:
    counts = np.array([65_535, 65_536, 65_538, 131_072, 131_076, 2**40, 3 * 2**40, 1])
    for size in range(len(counts) + 1):
        chosen = share_budget({"a": Held(counts)}, {"a": 1}, size)["a"]
        assert sorted(counts[chosen]) == sorted(counts)[len(counts) - size :]


def test_no_type_and_no_row_is_no_choice() -> None:
    assert share_budget({}, {}, 100) == {}
    assert share_budget({"a": Held(np.zeros(0))}, {"a": 0}, 100)["a"].tolist() == []


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("node_type", ["user", "item"])
def test_degrees_add_up_over_edge_types(tmp_path: Path, side: str, node_type: str) -> None:
    dataset = write_market(tmp_path / "ds")
    uses = DegreeUses(dataset, node_type, 1 << 20, side=side)  # type: ignore[arg-type]
    for _ in range(2):
        found = np.concatenate(list(uses.pieces()))
        assert found.tolist() == degrees(dataset, node_type, side).tolist()


def test_counters_that_do_not_fit_count_in_several_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_market(tmp_path / "ds", users=5000)
    monkeypatch.setattr("overspill.graph.reading.degrees._PIECE_BYTES", 8 * 96)
    monkeypatch.setattr("overspill.graph.reading.degrees._LEAST_COUNTED", 192)
    found = list(DegreeUses(dataset, "user", 0, side="source").pieces())
    assert max(piece.size for piece in found) == 96
    assert np.concatenate(found).tolist() == degrees(dataset, "user", "source").tolist()


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (None, "no counts were given"),
        (np.zeros(4, int), r"are int64 \(4,\)"),
        (np.zeros(3), "are float64"),
        (np.array([1, 0, -2]), r"negative.*row 2.*value -2"),
    ],
)
def test_counts_that_are_none_are_refused(counts: np.ndarray | None, told: str) -> None:
    with pytest.raises(InputError, match=told):
        list(GivenUses("node", counts, 3).pieces())
