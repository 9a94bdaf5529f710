"""Pass 1: append each edge to the spool by the range of its target.

Bottleneck: the input's bandwidth. Algorithm: staged blocks (`overspill.kernels.partition`), flushed
to one spool by a thread behind. The number of nodes need not be known: when a target lies beyond
the last range, ranges become wider and older blocks simply belong to the wider ones; when an id
outgrows 32 bits, later blocks hold 8-byte ids. A target that takes a notable share of the first
edges that come is a hub: its edges get ranges of their own, by source, so that they need not be
partitioned again. Memory: the pool of blocks.
Limits: a hub that the first edges do not show is found by the second pass, at the price of one more
reading and writing of its range.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from overspill.build.passes.spool import Blocks, Hub, Spool
from overspill.build.pipeline import Behind
from overspill.build.plan import BuildPlan
from overspill.build.spec import MOST_NODES
from overspill.kernels.open_blocks import FREE, FULL
from overspill.kernels.partition import (
    LARGEST_SOURCE,
    LARGEST_TARGET,
    LOOPS,
    scatter_edges,
)
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, aligned_bytes

Ids = npt.NDArray[np.int64]
UNBOUNDED = MOST_NODES
_HUB_TABLE = 256
_LEAST_HUB_EDGES = 2
# Three pages hold whole records of 12 and of 24 bytes.
_PAGES_OF_THREE = 3 * DIRECT_ALIGNMENT_BYTES
_NO_IDS = np.empty(0, np.int64)
_NO_IDS.flags.writeable = False


class RangePartitioner:
    """Partitions edges into a spool; close it, or use it as a context manager.

    Edges of one target come out in the order in which they were added, but those of hubs that are
    told apart by source. One thread at a time.

    Args:
        path: Where the spool goes.
        plan: Numbers and sizes of ranges and blocks.
        base: Targets below it are refused.
        id_limits: Sources, and targets, at or above are refused; `UNBOUNDED` where not known.
        last_target: Targets lie below it as far as is known; sets how wide the ranges start.
        edge_ids: Whether each edge has an id, kept beside it.
        hubs: What becomes of targets that take a notable share of the first edges: nothing
            ("none"), a range of their own ("whole"), or several ("by source").
    """

    def __init__(  # noqa: PLR0913 (what is known of the ids, and what records hold)
        self,
        path: Path,
        plan: BuildPlan,
        *,
        base: int = 0,
        id_limits: tuple[int, int] = (UNBOUNDED, UNBOUNDED),
        last_target: int = 1,
        edge_ids: bool = False,
        hubs: Literal["none", "whole", "by source"] = "none",
    ) -> None:
        self.base, self._limits, self._narrow = base, id_limits, plan.narrow_nodes
        known = [limit for limit in id_limits if limit < UNBOUNDED]
        self._wide = max(known, default=0) > plan.narrow_nodes
        self._ranges, self._by_source = plan.ranges, hubs == "by source"
        self._columns = 3 if edge_ids else 2
        self._hubs: list[Hub] | None = [] if hubs == "none" else None
        self.shift = _shift_for(last_target - 1 - base, plan.ranges)
        payload = block_payload_bytes(plan.block_bytes, self._columns)
        open_blocks = plan.ranges if hubs == "none" else 2 * plan.ranges
        blocks = open_blocks + plan.spare_blocks
        self._bytes = aligned_bytes(blocks * payload).reshape(blocks, payload)
        self._opened = np.empty(open_blocks, np.int64)
        self._fill = np.empty(open_blocks, np.int64)
        self._free, self._full_blocks, self._full_ranges = (
            np.empty(blocks, np.int64) for _ in range(3)
        )
        self._hub_targets = np.full(_HUB_TABLE, -1)
        self._hub_rules = np.zeros((_HUB_TABLE, 4), np.int64)
        self._state = np.array([0, 0, -1, -1, 0], np.int64)
        self._open_fresh_blocks()
        paged = payload % DIRECT_ALIGNMENT_BYTES == 0
        self.spool = Spool(path, columns=self._columns, paged=paged)
        # A quarter is being filled and a quarter waits while half is being written.
        self._handed_over = max(1, plan.spare_blocks // 4)
        self._writer: Behind[Ids] = Behind("overspill-spool", depth=2)

    @property
    def largest_source(self) -> int:
        """The largest source seen, or -1."""
        return int(self._state[LARGEST_SOURCE])

    @property
    def largest_target(self) -> int:
        """The largest target seen, or -1."""
        return int(self._state[LARGEST_TARGET])

    @property
    def loops(self) -> int:
        """How many edges have the same number at both ends."""
        return int(self._state[LOOPS])

    def add(self, sources: Ids, targets: Ids, edge_ids: Ids | None = None) -> int:
        """Append edges, in constant memory.

        Args:
            sources: (n,) int64.
            targets: (n,) int64.
            edge_ids: (n,) int64, from 0 on, where the partitioner keeps them.

        Returns:
            How many were taken: all, or up to the first edge with an id out of range.
        """
        if (edge_ids is None) != (self._columns == 2):
            raise ValueError("edge ids come with every edge or with none")
        edges = tuple(_plain(ids) for ids in (sources, targets, _no_ids(edge_ids)))
        if self._hubs is None and len(sources):
            self._find_hubs(sources, targets)
        at, count = 0, len(sources)
        while at < count:
            at = self._scatter(edges, at)
            if self._state[FULL] >= self._handed_over or self._state[FREE] == 0:
                self._hand_over()
            if self._state[FREE] == 0:
                self._take_back(self._writer.wait())
            elif at < count and not self._adapt([int(ids[at]) for ids in edges if len(ids)]):
                return at
        return count

    def give_hub(self, target: int, first_source: int, last_source: int, ranges: int) -> bool:
        """Give a target, none of whose edges came yet, ranges of its own.

        Args:
            target: The hub.
            first_source: Its sources are expected between this
            last_source: and that.
            ranges: A power of two.

        Returns:
            Whether there was room for them.
        """
        self._hubs = self._hubs or []
        place = target & (_HUB_TABLE - 1)
        first = self._hubs[-1].first_range + self._hubs[-1].ranges if self._hubs else self._ranges
        if self._hub_targets[place] != -1 or first + ranges > len(self._opened):
            return False
        shift = _shift_for(last_source - first_source, ranges)
        self._hubs.append(Hub(target, first, ranges, first_source, shift))
        self._hub_targets[place] = target
        self._hub_rules[place] = first, first_source, shift, ranges - 1
        return True

    def finish(self) -> Blocks:
        """Flush what is staged and give back the pool; the spool is then ready to be read."""
        self._flush()
        self._bytes = np.empty((0, 0), np.uint8)
        self._writer.close()
        self.spool.file.seal()
        blocks = self.spool.blocks()
        blocks.shift, blocks.hubs = self.shift, tuple(self._hubs or ())
        blocks.by_source = self._by_source
        return blocks

    def __enter__(self) -> RangePartitioner:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self.spool.file.remove()

    def _find_hubs(self, sources: Ids, targets: Ids) -> None:
        """Take the targets that many of these edges enter, by ranges in proportion."""
        self._hubs = []
        values, counts = np.unique(targets, return_counts=True)
        shares = counts * (len(self._opened) - self._ranges) // len(targets)
        known = self._limits[0] < UNBOUNDED
        last = self._limits[0] - 1 if known else int(sources.max())
        for place in np.argsort(-counts, kind="stable")[:_HUB_TABLE]:
            share, target = int(shares[place]), int(values[place])
            if share < 1 or counts[place] < _LEAST_HUB_EDGES:
                break
            if self.base <= target < self._limits[1] and last >= 0:
                ranges = 1 << (share.bit_length() - 1) if self._by_source else 1
                self.give_hub(target, 0, last, ranges)

    def _scatter(self, edges: tuple[Ids, ...], start: int) -> int:
        most = UNBOUNDED if self._wide else self._narrow
        source_limit, target_limit = (min(limit, most) for limit in self._limits)
        reach = min(target_limit, self.base + (self._ranges << self.shift))
        return scatter_edges(
            (edges[0], edges[1], edges[2], start),
            (self.shift, self.base, source_limit, reach, most),
            self._pool(),
            (self._opened, self._fill, self._free, self._full_blocks, self._full_ranges),
            (self._hub_targets, self._hub_rules),
            self._state,
        )

    def _pool(self) -> npt.NDArray[Any]:
        dtype = np.int64 if self._wide else np.int32
        return self._bytes.view(dtype).reshape(len(self._bytes), -1, self._columns)

    def _adapt(self, edge: list[int]) -> bool:
        """Make room for an edge that stopped the loop; False when its ids are out of range."""
        limits = (*self._limits, UNBOUNDED)
        if any(not 0 <= number < limit for number, limit in zip(edge, limits, strict=False)):
            return False
        if edge[1] < self.base:
            return False
        if max(edge) >= self._narrow and not self._wide:
            self._flush()
            self._wide = True
        shift = _shift_for(edge[1] - self.base, self._ranges)
        if shift > self.shift:
            self._flush()
            self.spool.widen_ranges(shift - self.shift, below=self._ranges)
            self.shift = shift
        return True

    def _hand_over(self) -> None:
        full = int(self._state[FULL])
        blocks = self._full_blocks[:full].copy()
        counts = np.full(full, self._pool().shape[1], np.int64)
        self._write(blocks, self._full_ranges[:full], counts)
        self._state[FULL] = 0

    def _flush(self) -> None:
        if self._state[FULL]:
            self._hand_over()
        partial = np.flatnonzero(self._fill)
        if len(partial):
            self._write(self._opened[partial], partial, self._fill[partial])
        self._writer.wait_for_all()
        self._open_fresh_blocks()

    def _write(self, blocks: Ids, ranges: Ids, counts: Ids) -> None:
        self.spool.note(ranges, counts, self._wide)
        grain = self.spool.grain
        sizes = -(-counts * self.spool.record_bytes(self._wide) // grain) * grain
        pieces = [
            self._bytes[block, :size].data
            for block, size in zip(blocks.tolist(), sizes.tolist(), strict=True)
        ]
        self._take_back(self._writer.submit(self._append, blocks, pieces))

    def _append(self, blocks: Ids, pieces: list[memoryview]) -> Ids:
        self.spool.file.append(*pieces)
        return blocks

    def _take_back(self, blocks: Ids | None) -> None:
        if blocks is not None:
            free = int(self._state[FREE])
            self._free[free : free + len(blocks)] = blocks
            self._state[FREE] = free + len(blocks)

    def _open_fresh_blocks(self) -> None:
        opened = len(self._opened)
        spare = len(self._bytes) - opened
        self._opened[:] = np.arange(opened)
        self._fill[:] = 0
        self._free[:spare] = np.arange(opened, opened + spare)
        self._state[FREE] = spare


def warm_partition(*, edge_ids: bool, wide: bool) -> None:
    """Compile, or load from the cache, what `RangePartitioner.add` runs for such edges."""
    pool = np.zeros((3, 2, 3 if edge_ids else 2), np.int64 if wide else np.int32)
    one = _plain(np.zeros(1, np.int64))
    table = np.zeros(3, np.int64)
    tables = table.copy(), table.copy(), table.copy(), table.copy(), table.copy()
    hubs = np.full(1, -1), np.zeros((1, 4), np.int64)
    state = np.array([1, 0, -1, -1, 0])
    edges = one, one, one if edge_ids else _NO_IDS, 0
    scatter_edges(edges, (0, 0, 1, 1, 1), pool, tables, hubs, state)


def block_payload_bytes(block_bytes: int, columns: int) -> int:
    """The part of a block that holds whole records, narrow or wide, and whole pages if it can."""
    if columns == 2:
        return max(16, block_bytes // 16 * 16)
    if block_bytes % DIRECT_ALIGNMENT_BYTES == 0 and block_bytes >= _PAGES_OF_THREE:
        return block_bytes // _PAGES_OF_THREE * _PAGES_OF_THREE
    return max(24, block_bytes // 24 * 24)


def _shift_for(furthest: int, ranges: int) -> int:
    return max(0, furthest.bit_length() - (ranges.bit_length() - 1))


def _no_ids(edge_ids: Ids | None) -> Ids:
    return _NO_IDS if edge_ids is None else edge_ids


def _plain(ids: Ids) -> Ids:
    """Contiguous and not writable: the kernel is compiled once, whoever owns the array."""
    held = np.ascontiguousarray(ids, np.int64)[:]
    held.flags.writeable = False
    return held
