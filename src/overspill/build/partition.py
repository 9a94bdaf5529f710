"""Pass 1: append each edge to the spool by the range of its target.

Bottleneck: the input's bandwidth. Algorithm: staged blocks (`overspill.kernels.partition`), flushed
to one spool by a thread behind. The number of nodes need not be known: when a target lies beyond
the last range, ranges become wider and older blocks simply belong to the wider ones; when an id
outgrows 32 bits, later blocks hold 8-byte ids. Memory: the pool of blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.pipeline import Behind
from overspill.build.plan import BuildPlan
from overspill.build.spec import MOST_NODES
from overspill.build.spool import Blocks, Spool
from overspill.kernels.partition import (
    FREE,
    FULL,
    LARGEST_SOURCE,
    LARGEST_TARGET,
    scatter_edges,
)

Ids = npt.NDArray[np.int64]
UNBOUNDED = MOST_NODES


class RangePartitioner:
    """Partitions edges into a spool; close it, or use it as a context manager.

    Args:
        path: Where the spool goes.
        plan: Numbers and sizes of ranges and blocks.
        base: Targets below it are refused.
        id_limit: Ids at or above it are refused; `UNBOUNDED` where it is not known.
        last_target: Targets lie below it as far as is known; sets how wide the ranges start.
        wide: Whether ids take 8 bytes from the start.
    """

    def __init__(
        self,
        path: Path,
        plan: BuildPlan,
        *,
        base: int = 0,
        id_limit: int = UNBOUNDED,
        last_target: int = 1,
        wide: bool = False,
    ) -> None:
        self.base, self._id_limit, self._wide = base, id_limit, wide
        self._ranges, self._narrow = plan.ranges, plan.narrow_nodes
        self.shift = _shift_for(last_target - 1 - base, plan.ranges)
        blocks = plan.ranges + plan.spare_blocks
        self._bytes = np.empty((blocks, plan.block_bytes), np.uint8)
        self._opened = np.empty(plan.ranges, np.int64)
        self._fill = np.empty(plan.ranges, np.int64)
        self._free, self._full_blocks, self._full_ranges = (
            np.empty(blocks, np.int64) for _ in range(3)
        )
        self._state = np.array([0, 0, -1, -1], np.int64)
        self._open_fresh_blocks()
        self.spool = Spool(path)
        self._writer: Behind[Ids] = Behind("overspill-spool")

    @property
    def largest_id(self) -> int:
        """The largest id seen, or -1."""
        return int(max(self._state[LARGEST_SOURCE], self._state[LARGEST_TARGET]))

    def add(self, sources: Ids, targets: Ids) -> int:
        """Append edges, in constant memory.

        Returns:
            How many were taken: all, or up to the first edge with an id out of range.
        """
        at, count = 0, len(sources)
        while at < count:
            at = self._scatter(sources, targets, at)
            if self._state[FULL]:
                self._hand_over()
            if self._state[FREE] == 0:
                self._take_back(self._writer.wait())
            elif at < count and not self._adapt(int(sources[at]), int(targets[at])):
                return at
        return count

    def finish(self) -> Blocks:
        """Flush what is staged and give back the pool; the spool is then ready to be read."""
        self._flush()
        self._bytes = np.empty((0, 0), np.uint8)
        self._writer.close()
        self.spool.file.seal()
        return self.spool.blocks()

    def __enter__(self) -> RangePartitioner:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self.spool.file.remove()

    def _scatter(self, sources: Ids, targets: Ids, start: int) -> int:
        limit = self._id_limit if self._wide else min(self._id_limit, self._narrow)
        reach = min(limit, self.base + (self._ranges << self.shift))
        return scatter_edges(
            (sources, targets, start),
            (self.shift, self.base),
            (limit, reach),
            self._pool(),
            (self._opened, self._fill, self._free, self._full_blocks, self._full_ranges),
            self._state,
        )

    def _pool(self) -> npt.NDArray[Any]:
        dtype = np.int64 if self._wide else np.int32
        return self._bytes.view(dtype).reshape(len(self._bytes), -1, 2)

    def _adapt(self, source: int, target: int) -> bool:
        """Make room for an edge that stopped the loop; False when its ids are out of range."""
        lowest, largest = min(source, target - self.base), max(source, target)
        if lowest < 0 or largest >= self._id_limit:
            return False
        if largest >= self._narrow and not self._wide:
            self._flush()
            self._wide = True
        shift = _shift_for(target - self.base, self._ranges)
        if shift > self.shift:
            self._flush()
            self.spool.widen_ranges(shift - self.shift)
            self.shift = shift
        return True

    def _hand_over(self) -> None:
        full = int(self._state[FULL])
        blocks = self._full_blocks[:full].copy()
        counts = np.full(full, self._pool().shape[1], np.int64)
        self._write(blocks, self._full_ranges[:full], counts)
        self._state[FULL] = 0

    def _flush(self) -> None:
        partial = np.flatnonzero(self._fill)
        if len(partial):
            self._write(self._opened[partial], partial, self._fill[partial])
        self._writer.wait()
        self._open_fresh_blocks()

    def _write(self, blocks: Ids, ranges: Ids, counts: Ids) -> None:
        pool = self._pool()
        self.spool.note(ranges, counts, self._wide)
        pieces = [
            pool[block, :count].reshape(-1).view(np.uint8).data
            for block, count in zip(blocks, counts, strict=True)
        ]
        self._take_back(self._writer.submit(self._append, blocks, pieces))

    def _append(self, blocks: Ids, pieces: list[memoryview]) -> Ids:
        for piece in pieces:
            self.spool.file.append(piece)
        return blocks

    def _take_back(self, blocks: Ids | None) -> None:
        if blocks is not None:
            free = int(self._state[FREE])
            self._free[free : free + len(blocks)] = blocks
            self._state[FREE] = free + len(blocks)

    def _open_fresh_blocks(self) -> None:
        spare = len(self._bytes) - self._ranges
        self._opened[:] = np.arange(self._ranges)
        self._fill[:] = 0
        self._free[:spare] = np.arange(self._ranges, self._ranges + spare)
        self._state[FREE] = spare


def _shift_for(furthest: int, ranges: int) -> int:
    return max(0, furthest.bit_length() - (ranges.bit_length() - 1))
