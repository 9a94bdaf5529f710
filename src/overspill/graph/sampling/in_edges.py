"""The in-edges of one type on disk: extents, sources, weights and times, read hop by hop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from overspill.errors import FormatError
from overspill.graph.item_reader import ItemReader, Opened
from overspill.graph.sampling.picks import Picks
from overspill.graph.sampling.spec import (
    Described,
    EdgeType,
    SamplingSpec,
    time_records,
    weight_records,
)
from overspill.storage.records import FileRecord

Picked = Callable[[EdgeType], Picks | None]


@dataclass(frozen=True)
class Column:
    """An array of one number an item, and its type."""

    array: ItemReader
    dtype: np.dtype[Any]


@dataclass(frozen=True, kw_only=True)
class InEdges:
    """The files of one edge type that sampling reads.

    Attributes:
        key: The edge type.
        index: Its place among the dataset's edge types.
        fan_outs: One a hop.
        counts: Nodes of the source type, nodes of the target type, edges.
        indptr: Items of 16 bytes, 8 apart: extents of the destinations.
        sources: Sources of the edges.
        weights: Weights of the edges, or None.
        times: Times of the edges, or None.
        source_times: Times of the source type's nodes, or None.
        picks: Chooses edges where they lie, where that is not here; or None.
    """

    key: EdgeType
    index: int
    fan_outs: tuple[int, ...]
    counts: tuple[int, int, int]
    indptr: ItemReader
    sources: Column
    weights: Column | None = None
    times: Column | None = None
    source_times: Column | None = None
    picks: Picks | None = None

    @property
    def timed(self) -> bool:
        """Whether an edge may come too late."""
        return self.times is not None or self.source_times is not None

    @property
    def arrays(self) -> Iterator[ItemReader]:
        """Every file, as it is read."""
        yield self.indptr
        for column in (self.sources, self.weights, self.times, self.source_times):
            if column is not None:
                yield column.array

    def damaged_extent(self, node: int) -> FormatError:
        """The error of a node whose in-edges are no range of edges."""
        return self._damaged(self.indptr, f"the in-edges of node {node} lie outside")

    def damaged_source(self, node: int) -> FormatError:
        """The error of a source that is no node."""
        return self._damaged(self.sources.array, f"id {node} lies outside")

    def _damaged(self, array: ItemReader, what: str) -> FormatError:
        sources, targets, edges = self.counts
        ends = f"{targets} nodes" if sources == targets else f"{sources} and {targets} nodes"
        return FormatError(
            f"the topology is damaged: {what} the graph's {ends} and {edges} edges",
            path=array.path,
            remedy="run overspill verify, or build the dataset again",
        )


def open_in_edges(
    dataset: Described, spec: SamplingSpec, opened: Opened, picked: Picked
) -> list[InEdges]:
    """Open what a specification reads, in the order of the dataset's edge types.

    Args:
        dataset: The dataset, which has the specification's edge types.
        spec: What is to be sampled.
        opened: Gives an array as a random reader, by record, stride and span.
        picked: Gives who chooses edges of a type where they lie, or None.

    Raises:
        InputError: The specification names arrays that are not there, or of another kind.
    """
    weights = weight_records(spec, dataset)
    node_times, edge_times = time_records(spec, dataset)
    nodes = dataset.manifest.node_types

    def column(record: FileRecord | None) -> Column | None:
        return None if record is None else _column(record, opened)

    return [
        InEdges(
            key=key,
            index=index,
            fan_outs=spec.num_neighbors[key],
            counts=(nodes[edge.source].count, nodes[edge.target].count, edge.count),
            indptr=opened(edge.layouts["csc"]["indptr"], 8, 16),
            sources=_column(edge.layouts["csc"]["indices"], opened),
            weights=column(weights.get(key)),
            times=column(edge_times.get(key)),
            source_times=column(node_times.get(edge.source)),
            picks=picked(key),
        )
        for index, (key, edge) in enumerate(dataset.manifest.edge_types.items())
        if key in spec.num_neighbors
    ]


def open_node_times(
    dataset: Described, spec: SamplingSpec, opened: Opened
) -> dict[str, Column] | None:
    """The times of nodes, by type; None where they are of edges, or there are none."""
    of_nodes, _ = time_records(spec, dataset)
    return {name: _column(record, opened) for name, record in of_nodes.items()} or None


def _column(record: FileRecord, opened: Opened) -> Column:
    dtype = np.dtype(record.dtype)
    return Column(opened(record, dtype.itemsize, dtype.itemsize), dtype)
