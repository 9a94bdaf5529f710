"""Which numbers a dataset's arrays of numbers may hold, and whether they do.

The sampler follows row pointers and neighbour ids without looking at their bounds, and opening a
dataset reads no payload; who reads every byte anyway, for its checksum, can look here.

Bottleneck: one or two passes over a piece that lies in the processor's cache, several times faster
than its digest. Holds one piece's comparison, at most a quarter of it, or three
where something is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.storage.manifest import Manifest
from overspill.storage.records import FileRecord, numpy_view_dtype
from overspill.storage.type_records import EdgeTypeRecord, NodeTypeRecord


@dataclass(frozen=True)
class Bounds:
    """What each number of an array may be.

    Attributes:
        count: Each is from 0 to this, exclusive.
        of: What they count, for a message.
        pointers: Instead, the first is 0, none is less than the one before, and the last is
            `count`: they cut `count` things into rows.
    """

    count: int
    of: str
    pointers: bool = False


def bounds_of(manifest: Manifest) -> dict[str, list[Bounds]]:
    """The bounds of every array that is followed unseen, by the path of its file.

    Those are indptr and indices, ids of nodes in the whole of which a dataset is a part, both ways
    of a renumbering, and the offsets of text ids. A file that is named twice has to keep to both.
    """
    found: dict[str, list[Bounds]] = defaultdict(list)
    part = None if manifest.partition is None else manifest.partition.nodes
    counts = {name: node.count for name, node in manifest.node_types.items()}
    # A part's neighbours, and only they, are numbered as in the whole.
    reach = counts if part is None else {name: nodes.global_count for name, nodes in part.items()}
    pairs = [
        *(pair for edge in manifest.edge_types.values() for pair in _of_edges(edge, reach)),
        *(pair for node in manifest.node_types.values() for pair in _of_nodes(node)),
    ]
    for name, nodes in (part or {}).items():
        if nodes.ids is not None:
            pairs.append((nodes.ids, Bounds(reach[name], f"nodes of type {name!r}")))
    for record, bounds in pairs:
        found[record.path].append(bounds)
    return dict(found)


def _of_edges(edge: EdgeTypeRecord, reach: dict[str, int]) -> Iterator[tuple[FileRecord, Bounds]]:
    for layout, parts in edge.layouts.items():
        other = edge.source if layout == "csc" else edge.target
        yield parts["indptr"], Bounds(edge.count_in(layout), "edges", pointers=True)
        yield parts["indices"], Bounds(reach[other], f"nodes of type {other!r}")


def _of_nodes(node: NodeTypeRecord) -> Iterator[tuple[FileRecord, Bounds]]:
    for record in (node.original, node.renumbered):
        if record is not None:
            yield record, Bounds(node.count, f"nodes of type {node.name!r}")
    if node.texts is not None:
        text = node.texts["data"].shape[0]
        yield node.texts["offsets"], Bounds(text, "bytes of text", pointers=True)


class NumbersRead:
    """Holds the payload of one array, piece after piece, against its bounds."""

    def __init__(self, dtype: str, bounds: Bounds) -> None:
        self._dtype = numpy_view_dtype(dtype)
        self._bounds = bounds
        self._rest = b""
        self._seen = 0
        self._last = 0
        self._fault: str | None = None

    def take(self, piece: memoryview) -> None:
        """Look at the next bytes of the payload, however many."""
        if self._fault is not None:
            return
        held: memoryview | bytes = self._rest + piece if self._rest else piece
        whole = len(held) // self._dtype.itemsize * self._dtype.itemsize
        # A read may end within a number.
        self._rest = bytes(held[whole:])
        values = np.frombuffer(held[:whole], self._dtype)
        if values.size:
            wrong = self._first_fall(values) if self._bounds.pointers else self._first_out(values)
            if wrong is not None:
                self._fault = f"number {self._seen + wrong} is {values[wrong]}, {self._what()}"
            self._seen += values.size
            self._last = int(values[-1])

    def fault(self) -> str | None:
        """What is wrong, once all bytes were taken; None where nothing is."""
        if self._fault is None and self._bounds.pointers and self._last != self._bounds.count:
            return f"the last number is {self._last}, {self._what()}"
        return self._fault

    def _what(self) -> str:
        told = f"{self._bounds.count} {self._bounds.of}"
        return f"in pointers that rise from 0 to {told}" if self._bounds.pointers else f"of {told}"

    def _first_out(self, values: npt.NDArray[Any]) -> int | None:
        if values.min() >= 0 and values.max() < self._bounds.count:
            return None
        return int(np.argmax((values < 0) | (values >= self._bounds.count)))

    def _first_fall(self, values: npt.NDArray[Any]) -> int | None:
        first = int(values[0])
        if first < self._last or (self._seen == 0 and first != 0):
            return 0
        falls = values[1:] < values[:-1]
        return int(np.argmax(falls)) + 1 if falls.any() else None
