from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overspill.build.moving.row_ends import RowEnds
from overspill.build.parting.split_owners import HashOwners, balanced_ranges, equal_ranges
from overspill.errors import FormatError, StaleFileError
from small_graphs import write_array


def ends_of(path: Path, degrees: list[int], *, total: int | None = None) -> RowEnds:
    ends = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    return RowEnds(path, write_array(path, ends), int(ends[-1]) if total is None else total)


@pytest.mark.parametrize(("count", "parts"), [(0, 3), (1, 4), (10, 3), (10, 10), (7, 1)])
def test_equal_ranges_differ_by_one_at_most(count: int, parts: int) -> None:
    owners = equal_ranges(count, parts)
    assert sum(owners.nodes) == count and len(owners.nodes) == parts
    assert max(owners.nodes) - min(owners.nodes) <= 1


def test_ranges_weigh_their_nodes_and_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    one, two = rng.zipf(2.1, 500).clip(max=300), rng.integers(0, 4, 500)
    layouts = [ends_of(tmp_path / "a", one.tolist()), ends_of(tmp_path / "b", two.tolist())]
    weights = 1 + one + two
    for parts in (1, 2, 7, 40):
        owners = balanced_ranges(500, parts, layouts)
        spans = list(zip(owners.bounds[:-1], owners.bounds[1:], strict=True))
        found = [int(weights[first:last].sum()) for first, last in spans]
        assert sum(found) == weights.sum()
        share = weights.sum() / parts
        assert all(abs(weight - share) <= weights.max() for weight in found)


def test_a_hub_larger_than_a_share_leaves_parts_empty(tmp_path: Path) -> None:
    owners = balanced_ranges(5, 8, [ends_of(tmp_path / "a", [0, 0, 1000, 0, 0])])
    assert owners.count == 5 and sorted(owners.bounds) == owners.bounds.tolist()
    assert sum(owners.nodes) == 5 and owners.nodes.count(0) >= 3
    hub = next(part for part in range(8) if owners.bounds[part] <= 2 < owners.bounds[part + 1])
    assert owners.nodes[hub] <= 3


@pytest.mark.parametrize("parts", [1, 4])
def test_no_nodes_and_no_layouts(tmp_path: Path, parts: int) -> None:
    assert balanced_ranges(0, parts, [ends_of(tmp_path / "a", [])]).nodes == [0] * parts
    assert balanced_ranges(4, parts, []).nodes == [4 // parts] * parts


def test_edges_of_each_part(tmp_path: Path) -> None:
    degrees = [3, 0, 5, 1, 0, 2]
    ends = ends_of(tmp_path / "a", degrees)
    assert equal_ranges(6, 3).edges(ends) == [3, 6, 2]
    hashed = HashOwners(6, 3)
    parts = np.concatenate([runs.copy() for runs, _ in hashed.runs(None, 1)])
    assert hashed.edges(ends) == [int(np.array(degrees)[parts == part].sum()) for part in range(3)]
    assert hashed.nodes == np.bincount(parts, minlength=3).tolist()


@pytest.mark.parametrize(
    ("ends", "total"),
    [
        ([0, 5, 3, 6], 6),
        ([0, 2, 4, 5], 6),
        ([1, 2, 4, 6], 6),
        ([0, 9, 9, 6], 6),
        ([0, -1, 2, 6], 6),
    ],
)
def test_damaged_row_ends_are_refused(tmp_path: Path, ends: list[int], total: int) -> None:
    held = RowEnds(tmp_path / "a", write_array(tmp_path / "a", np.array(ends)), total)
    with pytest.raises(FormatError, match=r"damaged.*remedy: check the dataset"):
        HashOwners(3, 2).edges(held)
    with pytest.raises(FormatError, match="damaged"):
        equal_ranges(3, 3).edges(held)


def test_row_ends_that_are_gone_or_cut(tmp_path: Path) -> None:
    ends = ends_of(tmp_path / "a", [1, 2, 3])
    with ends.opened() as places:
        assert [places.at(row) for row in range(4)] == [0, 1, 3, 6]
        with pytest.raises(StaleFileError, match=r"cut.*remedy: check the dataset"):
            places.at(4)
    (tmp_path / "a").unlink()
    with pytest.raises(StaleFileError):
        HashOwners(3, 2).edges(ends)
