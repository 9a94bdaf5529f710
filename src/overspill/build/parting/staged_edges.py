"""Edges staged for the parts that own them: a file a part, of blocks by range of the part's rows.

Bottleneck: the input, then the device. Algorithm: `overspill.kernels.stage` fills blocks, and a
thread behind appends those that are full to the file of their part, past the page cache; the table
of the blocks follows at the file's end. So a part's rows can be built from what is staged for it as
from a spool of its own, and each edge is written once and read once.
Memory: `StageSizes.pool_bytes`, whatever the numbers of edges and nodes. Limits: more than some
thousand parts leave no room for whole blocks; hubs are told apart only when rows are built.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from overspill.build.part_spec import StagedFile
from overspill.build.parting.split_owners import Owners, RangeOwners
from overspill.build.passes.partition import block_payload_bytes
from overspill.build.passes.spool import ScratchFile
from overspill.build.pipeline import Behind
from overspill.kernels.open_blocks import FREE, FULL
from overspill.kernels.stage import stage_edges
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, aligned_bytes

Ids = npt.NDArray[np.int64]
NARROW_NODES = 2**31 - 1
_OPEN_BLOCKS = 1024
_MOST_RANGES = 512
_SPARE_BLOCKS = 256
_GUIDE_BITS = 12
_NO_IDS = np.empty(0, np.int64)
_NO_IDS.flags.writeable = False


@dataclass(frozen=True)
class StageSizes:
    """How many ranges each part has, and the blocks' size: the same for all that stage one build.

    Attributes:
        ranges: Ranges a part, a power of two.
        block_bytes: Size of a block.
    """

    ranges: int
    block_bytes: int

    @classmethod
    def of(cls, num_parts: int) -> StageSizes:
        """The sizes for so many parts: as many ranges as leave few blocks open."""
        ranges = 1
        while ranges < _MOST_RANGES and 2 * ranges * num_parts <= _OPEN_BLOCKS:
            ranges *= 2
        return cls(ranges, (64 << 10) if num_parts <= _OPEN_BLOCKS else 16 << 10)

    def pool_bytes(self, num_parts: int) -> int:
        """Memory of all blocks."""
        return (num_parts * self.ranges + _SPARE_BLOCKS) * self.block_bytes

    def shift(self, rows: int) -> int:
        """How many low bits of a row its range leaves out, in a part of so many."""
        return max(0, (rows - 1).bit_length() - (self.ranges.bit_length() - 1))


class EdgeStager:
    """Stages edges; a context manager, at whose end files that were not finished are removed.

    Edges of one target are staged in the order in which they were added. One thread at a time.

    Args:
        path: Gives the place of a part's file; what lies there is replaced.
        owners: Which part has which targets.
        sources: Number of nodes that edges come from.
        most_ids: Edge ids lie below it, where edges have ids; else None.
    """

    def __init__(
        self,
        path: Callable[[int], Path],
        owners: Owners,
        *,
        sources: int,
        most_ids: int | None = None,
    ) -> None:
        self._path, self._columns = path, 2 if most_ids is None else 3
        sizes = StageSizes.of(owners.num_parts)
        self._ranges = sizes.ranges
        self._limits = (sources, owners.count, most_ids or 0)
        self.wide = max(sources, owners.count, most_ids or 0) > NARROW_NODES
        self._parts = parts_table(owners, sizes)
        payload = block_payload_bytes(sizes.block_bytes, self._columns)
        opened = owners.num_parts * sizes.ranges
        blocks = opened + _SPARE_BLOCKS
        dtype = np.int64 if self.wide else np.int32
        self._bytes = aligned_bytes(blocks * payload).reshape(blocks, payload)
        self._pool: npt.NDArray[Any] = self._bytes.view(dtype).reshape(blocks, -1, self._columns)
        self._opened, self._fill = np.arange(opened), np.zeros(opened, np.int64)
        self._free = np.zeros(blocks, np.int64)
        self._free[:_SPARE_BLOCKS] = np.arange(opened, blocks)
        self._full = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
        self._state = np.array([_SPARE_BLOCKS, 0])
        self._files: dict[int, _PartFile] = {}
        self._writer: Behind[Ids] = Behind("overspill-stage", depth=2)

    def add(self, sources: Ids, targets: Ids, ids: Ids | None = None) -> int:
        """Stage edges, in constant memory.

        Args:
            sources: (n,) int64.
            targets: (n,) int64, of the whole.
            ids: (n,) int64 where edges have ids.

        Returns:
            How many were taken: all, or up to the first edge with an id out of range.
        """
        edges = tuple(_plain(part) for part in (sources, targets, _NO_IDS if ids is None else ids))
        at, count = 0, len(sources)
        while at < count:
            at = stage_edges(
                (edges[0], edges[1], edges[2], at),
                self._limits,
                self._parts,
                self._pool,
                (self._opened, self._fill, self._free, *self._full),
                self._state,
            )
            if self._state[FREE] and at < count:
                return at
            if self._state[FULL] >= _SPARE_BLOCKS // 4 or self._state[FREE] == 0:
                self._hand_over()
            if self._state[FREE] == 0:
                self._take_back(self._writer.wait())
        return count

    def finish(self) -> list[StagedFile | None]:
        """Write what is left, make all files durable; one entry a part, None where it got no edge.

        Raises:
            DiskRefusedError: The disk refused.
        """
        if self._state[FULL]:
            self._hand_over()
        partial = np.flatnonzero(self._fill)
        if len(partial):  # each of its range's last block
            self._write(self._opened[partial], partial, self._fill[partial])
        self._writer.wait_for_all()
        self._bytes, self._pool = np.empty((0, 0), np.uint8), np.empty((0, 0, 0))
        return [
            self._files[part].finish() if part in self._files else None
            for part in range(len(self._parts[1]))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()
        for file in self._files.values():
            file.abandon()

    def _hand_over(self) -> None:
        full = int(self._state[FULL])
        blocks, ranges = (held[:full].copy() for held in self._full)
        self._state[FULL] = 0
        self._write(blocks, ranges, np.full(full, self._pool.shape[1], np.int64))

    def _write(self, blocks: Ids, ranges: Ids, counts: Ids) -> None:
        order = np.argsort(ranges // self._ranges, kind="stable")
        self._take_back(
            self._writer.submit(self._append, blocks[order], ranges[order], counts[order])
        )

    def _append(self, blocks: Ids, ranges: Ids, counts: Ids) -> Ids:
        parts = ranges // self._ranges
        cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
        for first, last in pairwise(cuts):
            self._file(int(parts[first])).append(
                [self._bytes[block] for block in blocks[first:last].tolist()],
                ranges[first:last] % self._ranges,
                counts[first:last],
                self._columns * self._pool.dtype.itemsize,
            )
        return blocks

    def _file(self, part: int) -> _PartFile:
        if part not in self._files:
            self._files[part] = _PartFile(self._path(part))
        return self._files[part]

    def _take_back(self, blocks: Ids | None) -> None:
        if blocks is not None:
            free = int(self._state[FREE])
            self._free[free : free + len(blocks)] = blocks
            self._state[FREE] = free + len(blocks)


class _PartFile:
    """The staged file of one part while it is written."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # of an attempt that was killed
        self._path = path
        self._file = ScratchFile(path, paged=True)
        self._table, self._end, self._edges, self._kept = array("q"), 0, 0, False

    def append(
        self, blocks: list[npt.NDArray[np.uint8]], ranges: Ids, counts: Ids, record_bytes: int
    ) -> None:
        pieces = []
        for block, number, count in zip(blocks, ranges.tolist(), counts.tolist(), strict=True):
            size = _paged(count * record_bytes)
            pieces.append(block[:size].data)
            self._table.extend((number, self._end, count))
            self._end += size
            self._edges += count
        self._file.append(*pieces)

    def finish(self) -> StagedFile:
        table = np.array(self._table)
        held = aligned_bytes(_paged(table.nbytes))
        held[:] = 0
        held[: table.nbytes] = table.view(np.uint8)
        self._file.append(held.data)
        size = self._file.seal()
        self._file.keep()
        self._kept = True
        return StagedFile(
            path=self._path.name,
            edges=self._edges,
            blocks=len(table) // 3,
            table=self._end,
            nbytes=size,
        )

    def abandon(self) -> None:
        if not self._kept:
            self._file.remove()


def warm_staging(*, edge_ids: bool, wide: bool) -> None:
    """Compile, or load from the cache, what `EdgeStager.add` runs for such edges."""
    pool = np.zeros((3, 2, 3 if edge_ids else 2), np.int64 if wide else np.int32)
    one = _plain(np.zeros(1, np.int64))
    table = np.zeros(3, np.int64)
    tables = table.copy(), table.copy(), table.copy(), table.copy(), table.copy()
    parts = np.array([0, 1]), np.zeros(1, np.int64), np.zeros(1, np.int64), 0, 1
    edges = one, one, one if edge_ids else _NO_IDS, 0
    stage_edges(edges, (1, 1, 1), parts, pool, tables, np.array([1, 0]))


def parts_table(owners: Owners, sizes: StageSizes) -> tuple[Ids, Ids, Ids, int, int]:
    """What the kernels are told of the parts."""
    if not isinstance(owners, RangeOwners):
        shifts = np.full(owners.num_parts, sizes.shift(owners.count))
        return np.empty(0, np.int64), shifts, np.zeros(1, np.int64), 0, sizes.ranges
    bounds = owners.bounds.astype(np.int64)
    guide_shift = max(0, (owners.count - 1).bit_length() - _GUIDE_BITS)
    starts = np.arange(((max(1, owners.count) - 1) >> guide_shift) + 1) << guide_shift
    guide = np.searchsorted(bounds, starts, side="right") - 1
    # Of empty parts at the same place the last has the id; none is beyond the last part.
    guide = np.minimum(guide, owners.num_parts - 1)
    shifts = np.array([sizes.shift(rows) for rows in owners.nodes])
    return bounds, shifts, guide, guide_shift, sizes.ranges


def _paged(nbytes: int) -> int:
    return -(-nbytes // DIRECT_ALIGNMENT_BYTES) * DIRECT_ALIGNMENT_BYTES


def _plain(ids: Ids) -> Ids:
    """Contiguous and not writable: the kernel is compiled once, whoever owns the array."""
    held = np.ascontiguousarray(ids, np.int64)[:]
    held.flags.writeable = False
    return held
