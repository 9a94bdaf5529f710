"""Uniform neighbour sampling over a mapped topology, hop by hop.

Bottleneck: random reads of indptr and indices, on disk or in the caches. Algorithm, for each hop:
read the extents of the frontier, choose edges, read their other ends, give those their local ids.
Both reads go through `PagedArray`, which asks for a hop's absent pages before touching them.

Memory: 36 to 44 bytes a sampled edge and up to 64 a node, in buffers that are kept from batch to
batch and sized to the batch, never to the graph. 6 to 9 million edges a second and core in memory.

Semantics are PyTorch Geometric's: the seeds come first, then nodes in order of discovery; each node
is expanded once, at the hop after the one that found it. Every occurrence of a repeated seed keeps
its place and samples for itself; edges out of such a node start at its first occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import FormatError, InputError, NoRoomError
from overspill.graph.node_ids import require_within
from overspill.graph.paged import PagedArray
from overspill.kernels.relabel import enter_seeds, move_entries, relabel
from overspill.kernels.sample import SCANNED_PICKS, count_picks, pick_edges

_Ids = npt.NDArray[np.int64]
# Values relabelled at a time: the table grows to what they find, not to what they might.
_CHUNK = 1 << 16
_FEWEST_SLOTS = 1 << 10
_REMEDY = "sample fewer neighbours or smaller batches, or raise the memory limit"


@dataclass(frozen=True)
class Hop:
    """What one hop found; the arrays are buffers that the next batch overwrites.

    Attributes:
        rows: int64 (edges,), local ids of the edges' sources.
        columns: int64 (edges,), local ids of their destinations.
        nodes: int64 (nodes,), global ids met for the first time.
    """

    rows: _Ids
    columns: _Ids
    nodes: _Ids


@dataclass(frozen=True)
class SampledNeighborhood:
    """The sampled neighbourhood of a batch of seeds, in PyTorch Geometric's order.

    Attributes:
        seeds: int64 (seeds,), as they were given.
        hops: One a fan-out, from the seeds outwards.
    """

    seeds: _Ids
    hops: tuple[Hop, ...]

    @property
    def nodes_per_hop(self) -> list[int]:
        """The seeds, then how many nodes each hop found."""
        return [self.seeds.size, *(hop.nodes.size for hop in self.hops)]

    @property
    def edges_per_hop(self) -> list[int]:
        """How many edges each hop sampled."""
        return [hop.rows.size for hop in self.hops]

    def write_nodes(self, out: _Ids) -> None:
        """Write the global ids of all nodes into int64 (sum of `nodes_per_hop`,)."""
        np.concatenate([self.seeds, *(hop.nodes for hop in self.hops)], out=out)

    def write_edges(self, out: _Ids) -> None:
        """Write local sources and destinations into int64 (2, sum of `edges_per_hop`)."""
        if self.hops:
            np.concatenate([hop.rows for hop in self.hops], out=out[0])
            np.concatenate([hop.columns for hop in self.hops], out=out[1])


@dataclass(frozen=True)
class SampleLimit:
    """The largest neighbourhood that memory was planned for."""

    nodes: int
    edges: int


class NeighborSampler:
    """Samples in-neighbours of batches of seeds.

    Holds reused buffers: one thread and one process at a time. It does not pickle; each worker
    makes its own.

    Args:
        indptr: Items of 16 bytes, 8 apart: extents of the destinations.
        indices: Items of one index: sources of the edges.
        index_dtype: int32 or int64, that of `indices`.
        num_neighbors: Fan-out of each hop; -1 for all in-edges.
        replace: Draw with replacement: exactly the fan-out, where there is an edge at all.
        limit: Refuse neighbourhoods larger than this; None for no limit.
    """

    def __init__(
        self,
        indptr: PagedArray,
        indices: PagedArray,
        *,
        index_dtype: npt.DTypeLike,
        num_neighbors: Sequence[int],
        replace: bool = False,
        limit: SampleLimit | None = None,
    ) -> None:
        self.num_neighbors = check_fan_outs(num_neighbors)
        self.replace = replace
        self.limit = limit
        self.num_nodes = max(indptr.payload_bytes // indptr.stride_bytes - 1, 0)
        self.num_edges = indices.payload_bytes // indices.stride_bytes
        self._indptr, self._indices = indptr, indices
        self._dtype = np.dtype(index_dtype)
        self._table = _NodeTable(self.num_nodes)
        self._extents = _Buffer(np.int64)
        self._values = _Buffer(self._dtype)
        self._hops = [tuple(_Buffer(np.int64) for _ in range(3)) for _ in self.num_neighbors]
        self._scratch = np.empty(1, dtype=np.int64)

    def check_unchanged(self) -> None:
        """Refuse to go on over topology files that changed (StaleFileError)."""
        self._indptr.check_unchanged()
        self._indices.check_unchanged()

    def sample(self, seeds: _Ids, *, key: np.uint64) -> SampledNeighborhood:
        """Sample the neighbourhood of a batch.

        Args:
            seeds: int64 (seeds,), contiguous; repeats keep their places.
            key: The batch's random stream; the same key and seeds give the same result.

        Returns:
            The neighbourhood, in buffers that the next call overwrites.

        Raises:
            InputError: A seed lies outside the graph.
            FormatError: The topology is damaged: an entry lies outside the graph.
            NoRoomError: It grew larger than `limit`.
        """
        # Here and not only where a loader is made: a list of seeds may be written to meanwhile.
        require_within(seeds, self.num_nodes, what="seeds")
        self._table.reset(seeds)
        hops: list[Hop] = []
        frontier, base, edges = seeds, 0, 0
        for fan_out, buffers in zip(self.num_neighbors, self._hops, strict=True):
            found = base + frontier.size
            hop = self._sample_hop(frontier, fan_out, (key, base), buffers, found, edges)
            hops.append(hop)
            edges += hop.rows.size
            frontier, base = hop.nodes, found
        return SampledNeighborhood(seeds, tuple(hops))

    def _sample_hop(
        self,
        frontier: _Ids,
        fan_out: int,
        stream: tuple[np.uint64, int],
        buffers: tuple[_Buffer, ...],
        found: int,
        edges: int,
    ) -> Hop:
        extents = self._extents.array(2 * frontier.size).reshape(-1, 2)
        self._indptr.take(frontier, extents)
        count = count_picks(extents, fan_out, self.replace, self.num_edges)
        if count < 0:
            node = int(frontier[-1 - count])
            raise self._damaged(self._indptr, f"the in-edges of node {node}")
        self._check_limit("edges", edges + count)
        rows, columns = buffers[0].array(count), buffers[1].array(count)
        scratch = self._pick_table(fan_out, extents)
        pick_edges(extents, fan_out, self.replace, stream, scratch, (rows, columns))
        values = self._values.array(count)
        self._indices.take(rows, values)
        fresh = buffers[2].array(min(count, self.num_nodes))
        nodes = self._relabel(values, rows, fresh, found)
        return Hop(rows, columns, nodes)

    def _pick_table(self, fan_out: int, extents: _Ids) -> _Ids:
        """Scratch for subsets of many picks; none where no destination has so many edges."""
        if fan_out > SCANNED_PICKS and not self.replace:
            drawn = bool((extents[:, 1] - extents[:, 0] > fan_out).any())
            if drawn and self._scratch.size < 2 * fan_out:
                self._scratch = np.empty(1 << (2 * fan_out - 1).bit_length(), dtype=np.int64)
        return self._scratch

    def _relabel(self, values: npt.NDArray[Any], rows: _Ids, fresh: _Ids, base: int) -> _Ids:
        found = 0
        for start in range(0, values.size, _CHUNK):
            chunk = values[start : start + _CHUNK]
            table, shift = self._table.with_room(base + found, chunk.size)
            target = rows[start : start + _CHUNK]
            found = relabel(table, shift, chunk, target, fresh, (base, found, self.num_nodes))
            if found < 0:
                raise self._damaged(self._indices, f"id {chunk[-1 - found]}")
            self._check_limit("nodes", base + found)
        return fresh[:found]

    def _check_limit(self, what: str, count: int) -> None:
        most = None if self.limit is None else getattr(self.limit, what)
        if most is not None and count > most:
            raise NoRoomError(
                f"a batch reached {count} {what} where memory was planned for {most}",
                remedy=_REMEDY,
            )

    def _damaged(self, array: PagedArray, what: str) -> FormatError:
        return FormatError(
            f"the topology is damaged: {what} lies outside the graph's {self.num_nodes} nodes and "
            f"{self.num_edges} edges",
            path=array.mapping.path,
            remedy="run overspill verify, or build the dataset again",
        )


def check_fan_outs(num_neighbors: Sequence[int]) -> tuple[int, ...]:
    """Check a list of fan-outs, one a hop, each -1 (all), 0 or more (InputError)."""
    if isinstance(num_neighbors, str | bytes) or not isinstance(num_neighbors, Sequence):
        raise InputError(
            f"num_neighbors must be a list with one fan-out a hop, not {num_neighbors!r}",
            remedy="write num_neighbors=[15, 10], or [-1, -1] for all neighbours",
        )
    for hop, fan_out in enumerate(num_neighbors):
        whole = isinstance(fan_out, int | np.integer) and not isinstance(fan_out, bool)
        if not whole or not -1 <= fan_out < 2**31:
            raise InputError(
                f"the fan-out of hop {hop} must be -1 (all neighbours) or a whole number from 0 "
                f"to {2**31 - 1}, not {fan_out!r}",
                value=str(fan_out),
                remedy="write num_neighbors=[15, 10], or [-1, -1] for all neighbours",
            )
    if not num_neighbors:
        raise InputError(
            "num_neighbors is empty: no hop to sample", remedy="give one fan-out a hop"
        )
    return tuple(int(fan_out) for fan_out in num_neighbors)


class _Buffer:
    """Memory that grows to the largest request; the content is lost when it grows."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._held: npt.NDArray[Any] = np.empty(0, dtype=dtype)

    def array(self, size: int) -> npt.NDArray[Any]:
        if self._held.size < size:
            dtype = self._held.dtype
            self._held = np.empty(0, dtype=dtype)  # the old one goes before the new one comes
            self._held = np.empty(size + size // 4, dtype=dtype)
        return self._held[:size]


class _NodeTable:
    """The hash table from global to local ids, grown to the batch."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._dtype = np.int32 if num_nodes <= 2**31 - 1 else np.int64
        self._table = self._empty(_FEWEST_SLOTS)

    def reset(self, seeds: _Ids) -> None:
        self._table.fill(-1)
        if self._slots(seeds.size) > len(self._table):
            self._table = self._empty(self._slots(seeds.size))
        enter_seeds(self._table, self._shift, seeds)

    def with_room(self, held: int, more: int) -> tuple[npt.NDArray[Any], int]:
        slots = self._slots(held + more)
        if slots > len(self._table):
            old, self._table = self._table, self._empty(slots)
            move_entries(old, self._table, self._shift)
        return self._table, self._shift

    @property
    def _shift(self) -> int:
        slots = len(self._table)
        return 64 if slots >= self._num_nodes else 64 - (slots.bit_length() - 1)

    def _slots(self, nodes: int) -> int:
        # Half full at most; the whole graph fits without a collision, so never more than that.
        wanted = min(2 * nodes, max(self._num_nodes, _FEWEST_SLOTS))
        return 1 << max(wanted - 1, 1).bit_length()

    def _empty(self, slots: int) -> npt.NDArray[Any]:
        return np.full((slots, 2), -1, dtype=self._dtype)
