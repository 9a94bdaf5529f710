from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from naive import TINY
from overspill.build.partition import RangePartitioner
from overspill.build.spool import Blocks
from overspill.errors import StaleFileError


def edges_of(blocks: Blocks, shift: int, base: int = 0) -> list[tuple[int, int]]:
    """All edges of a spool, checked to lie in their block's range."""
    found: list[tuple[int, int]] = []
    for part in blocks.slices(1):
        pairs = part.read(np.empty((part.edges, 2), np.int64))
        assert np.all((pairs[:, 1] - base) >> shift == part.ranges[0])
        found += [(int(source), int(target)) for source, target in pairs]
    return found


def random_edges(count: int, most: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, most, count), rng.integers(0, most, count)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("most", [1, 3, 100, 10**6])
def test_every_edge_is_kept_in_its_range(
    tmp_path: Path, known: bool, wide: bool, most: int
) -> None:
    sources, targets = random_edges(500, most)
    with RangePartitioner(
        tmp_path / "spool", TINY, last_target=most if known else 1, wide=wide
    ) as partitioner:
        for start in range(0, 500, 70):
            part = slice(start, start + 70)
            assert partitioner.add(sources[part], targets[part]) == len(sources[part])
        blocks = partitioner.finish()
        assert blocks.edges == 500
        found = edges_of(blocks, partitioner.shift)
        assert partitioner.largest_id == max(sources.max(), targets.max())
        assert blocks.ranges.max(initial=0) < TINY.ranges
    assert sorted(found) == sorted(zip(sources.tolist(), targets.tolist(), strict=True))
    assert list(tmp_path.iterdir()) == []


def test_targets_that_grow_widen_the_ranges(tmp_path: Path) -> None:
    targets = np.array([2**power for power in range(40)])
    with RangePartitioner(tmp_path / "spool", TINY) as partitioner:
        assert partitioner.add(np.arange(40), targets) == 40
        found = edges_of(partitioner.finish(), partitioner.shift)
        assert partitioner.shift == 38
    assert sorted(found) == [(power, 2**power) for power in range(40)]


@pytest.mark.parametrize("value", [2**31 - 1, 2**31])
@pytest.mark.parametrize("column", [0, 1])
def test_an_id_beyond_31_bits_makes_later_blocks_wide(
    tmp_path: Path, column: int, value: int
) -> None:
    sources, targets = random_edges(60, 50)
    (sources, targets)[column][30] = value
    with RangePartitioner(tmp_path / "spool", TINY) as partitioner:
        assert partitioner.add(sources, targets) == 60
        blocks = partitioner.finish()
        assert blocks.has_wide and not blocks._wide.all()
        found = edges_of(blocks, partitioner.shift)
    assert sorted(found) == sorted(zip(sources.tolist(), targets.tolist(), strict=True))


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("value", [-1, 50, 2**31, 2**62, -(2**63), 2**63 - 1])
def test_an_id_out_of_range_is_not_taken(tmp_path: Path, column: int, value: int) -> None:
    sources, targets = random_edges(60, 50)
    (sources, targets)[column][33] = value
    with RangePartitioner(tmp_path / "spool", TINY, id_limit=50, last_target=50) as partitioner:
        assert partitioner.add(sources, targets) == 33


def test_ranges_may_start_elsewhere(tmp_path: Path) -> None:
    sources, targets = random_edges(100, 40)
    with RangePartitioner(tmp_path / "spool", TINY, base=1000, last_target=1040) as partitioner:
        assert partitioner.add(sources, targets + 1000) == 100
        found = edges_of(partitioner.finish(), partitioner.shift, base=1000)
    assert sorted(t for _, t in found) == sorted((targets + 1000).tolist())


def test_the_same_edges_give_the_same_spool(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        with RangePartitioner(tmp_path / name, TINY) as partitioner:
            partitioner.add(*random_edges(500, 1000))
            partitioner.finish()
            contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1] and len(contents[0]) == 500 * 8


def test_a_spool_cut_meanwhile_is_an_error(tmp_path: Path) -> None:
    with RangePartitioner(tmp_path / "spool", replace(TINY, spare_blocks=1)) as partitioner:
        partitioner.add(*random_edges(100, 10))
        blocks = partitioner.finish()
        with (tmp_path / "spool").open("r+b") as spool:
            spool.truncate(400)
        with pytest.raises(StaleFileError, match="cut"):
            blocks.read(np.empty((100, 2), np.int32))
