"""The parts that lie on this machine, read in place: by global ids in, global ids and places out.

Bottleneck: what `PagedArray` says. Everything here may be asked by several threads at a time:
what it reads through is opened once, under a lock, and keeps no state of a request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.cluster.layout import Ids, Layout, PartArray, groups_of
from overspill.cluster.warm import place_dtype, read_only
from overspill.errors import ClusterError, FormatError, InputError, StaleFileError
from overspill.graph.dataset import Dataset, EdgeType, open_dataset
from overspill.graph.edge_ends import Ends
from overspill.graph.item_reader import ItemReader
from overspill.graph.reading.array_keys import Owner
from overspill.graph.sampling.picks import Wish
from overspill.kernels.sample import SCANNED_PICKS, count_each, pick_edges_apart
from overspill.storage.records import FileRecord

# Edges of a reply, unless one destination has more: 12 MiB, or 16.
REPLY_EDGES = 1 << 20
_EXTENT_BYTES = 16
_NO_TABLE = np.empty(0, np.int64)
Size = tuple[int, int]  # bytes from one item to the next, and of an item


@dataclass(frozen=True)
class Picked:
    """Edges that were chosen for the first of some destinations.

    Attributes:
        counts: uint32 (destinations done,).
        sources: (edges,), as they are stored.
        places: (edges,), int32 or int64; empty where they are not wanted.
        refused: Edges of the first destination, where that has too many; else 0.
    """

    counts: npt.NDArray[np.uint32]
    sources: npt.NDArray[Any]
    places: npt.NDArray[Any]
    refused: int = 0


class LocalParts:
    """Parts of a dataset whose files lie here.

    Files are opened on first use and stay open. It does not pickle.

    Args:
        layout: The dataset.
        parts: Which parts are here; others are refused.
    """

    def __init__(self, layout: Layout, parts: tuple[int, ...]) -> None:
        self._layout, self.parts = layout, parts
        self._here = np.full(layout.num_parts, -1, np.int64)
        self._here[list(parts)] = np.arange(len(parts))
        self._datasets: dict[int, Dataset] = {}
        self._readers: dict[tuple[str, int, Size], ItemReader] = {}
        self._ends: dict[tuple[EdgeType, int], Ends] = {}
        self._opening = threading.RLock()

    def take(
        self,
        array: str,
        size: Size,
        ids: Ids,
        out: npt.NDArray[Any],
        *,
        places: Ids | None = None,
        threads: int = 1,
    ) -> None:
        """Copy items by their numbers in the whole; see `PagedArray.take`.

        Raises:
            StaleFileError: A file was cut, replaced or removed, or a part is not what it was.
            FormatError: Pointers that lead out of a part.
            MappingError: The disk refused to read.
        """
        if not ids.size or not size[1]:
            return
        what = self._layout.arrays[array]
        for part, positions in self._by_part(what.numbered_by, ids):
            mine = ids if positions is None else ids[positions]
            target = positions if places is None else places
            if positions is not None and places is not None:
                target = places[positions]
            reader = self._reader(array, part, size)
            reader.take(self._numbers(what, part, mine), out, places=target, threads=threads)
            if what.is_pointers:
                self._raise_pointers(what.owner, part, reader, _of(out, size, target))

    def pick(self, edge_type: EdgeType, ids: Ids, local_ids: Ids, wish: Wish) -> Picked:
        """Choose in-edges of destinations that are here, as many as a reply holds.

        Args:
            edge_type: The type.
            ids: int64 (destinations,), global.
            local_ids: int64 (destinations,), their local ids in the batch.
            wish: What is wanted.

        Raises:
            StaleFileError: As for `take`.
            FormatError: As for `take`.
            MappingError: As for `take`.
        """
        edge = self._layout.manifest.edge_types[edge_type]
        records = edge.layouts["csc"]
        extents = np.empty((ids.size, 2), np.int64)
        self.take(records["indptr"].path, (8, _EXTENT_BYTES), ids, extents)
        counts = np.empty(ids.size, np.uint32)
        count_each(extents, wish.fan_out, wish.replace, counts)
        ends = np.cumsum(counts, dtype=np.int64)
        done = int(np.searchsorted(ends, REPLY_EDGES, side="right"))
        if not done and ids.size:
            if wish.most is not None and ends[0] > wish.most:
                places = np.empty(0, np.int64)
                return Picked(counts[:0], places[:0], places[:0], int(ends[0]))
            done = 1
        total = int(ends[done - 1]) if done else 0
        places = np.empty(total, np.int64)
        stream = (wish.key, local_ids[:done])
        scratch = _scratch(wish, counts[:done])
        pick_edges_apart(extents[:done], wish.fan_out, wish.replace, stream, scratch, places)
        dtype = np.dtype(records["indices"].dtype)
        sources = np.empty(total, dtype)
        self.take(records["indices"].path, (dtype.itemsize, dtype.itemsize), places, sources)
        sent = places[: total if wish.with_places else 0].astype(
            place_dtype(edge.count), copy=False
        )
        return Picked(read_only(counts[:done]), read_only(sources), read_only(sent))

    def edge_ends(self, edge_type: EdgeType, places: Ids) -> Ids:
        """Sources and targets of edges that are here, by their places: int64 (2, edges).

        Raises:
            StaleFileError: As for `take`.
            MappingError: As for `take`.
        """
        found = np.empty((2, places.size), np.int64)
        for part, positions in self._by_part(edge_type, places):
            mine = places if positions is None else places[positions]
            ends = self._part_ends(edge_type, part).at(
                mine - self._layout.first_edge(edge_type, part)
            )
            held = self.dataset(part).part
            assert held is not None
            ends[1] = held.global_ids(ends[1], edge_type[2]).numpy()
            found[:, slice(None) if positions is None else positions] = ends
        return found

    def check_unchanged(self, array: str, size: Size) -> None:
        """Refuse to go on over files of an array that changed (StaleFileError)."""
        for part in self.parts:
            reader = self._readers.get((array, part, size))
            if reader is not None:
                reader.check_unchanged()

    def dataset(self, part: int) -> Dataset:
        """A part, opened on first use.

        Raises:
            FormatError: It is not here.
            StaleFileError: Another one is here.
        """
        held = self._datasets.get(part)
        if held is None:
            with self._opening:
                held = self._datasets.setdefault(part, open_part(self._layout, part))
        return held

    def _by_part(self, owner: Owner, ids: Ids) -> Iterator[tuple[int, Ids | None]]:
        part = self._layout.only_part(owner, ids)
        if part is not None and self._here[part] >= 0:
            yield part, None
            return
        parts = self._layout.parts_of(owner, ids)
        there = self._here[parts]
        if there.size and int(there.min()) < 0:
            absent = int(parts[int(np.argmin(there))])
            raise ClusterError(
                f"part {absent} of {self._layout.path} was asked of a machine that does not serve "
                "it",
                path=self._layout.path,
                remedy="open the dataset again",
            )
        for group, positions in groups_of(parts, self._here, len(self.parts)):
            yield self.parts[group], positions

    def _numbers(self, what: PartArray, part: int, ids: Ids) -> Ids:
        """Numbers of items in a part."""
        owner = what.numbered_by
        if not isinstance(owner, str):
            return ids - self._layout.first_edge(owner, part)
        if not self._layout.hashed:
            return ids - self._layout.first_node(owner, part)
        held = self.dataset(part).part
        assert held is not None
        local: Ids = held.local_ids(ids, owner).numpy()
        return local

    def _raise_pointers(
        self, owner: Owner, part: int, reader: ItemReader, held: tuple[Ids, Any]
    ) -> None:
        """Make places in a part those in the whole, once they are known to lie in the part."""
        pointers, target = held
        found = pointers[target]
        count = self.dataset(part).edge_record(owner).count  # type: ignore[arg-type] # of edges
        bad = (found.min() < 0) or (found.max() > count)
        if bad or (found.shape[1] == 2 and bool((found[:, 0] > found[:, 1]).any())):
            raise FormatError(
                f"the topology of part {part} is damaged: the in-edges of a node lie outside its "
                f"{count} edges",
                path=reader.path,
                remedy="run overspill verify, or partition the dataset again",
            )
        pointers[target] = found + self._layout.first_edge(owner, part)

    def _reader(self, array: str, part: int, size: Size) -> ItemReader:
        key = (array, part, size)
        held = self._readers.get(key)
        if held is None:
            with self._opening:
                held = self._readers.get(key)
                if held is None:
                    held = self._opened(array, part, size)
                    self._readers[key] = held
        return held

    def _opened(self, array: str, part: int, size: Size) -> ItemReader:
        dataset, what = self.dataset(part), self._layout.arrays[array]
        return dataset.open_reader(record_in(dataset, what), *size)

    def _part_ends(self, edge_type: EdgeType, part: int) -> Ends:
        key = (edge_type, part)
        held = self._ends.get(key)
        if held is None:
            with self._opening:
                opened = self.dataset(part).open_edge_ends(edge_type)
                held = self._ends.setdefault(key, opened)
        return held


def open_part(layout: Layout, part: int) -> Dataset:
    """Open a part where it should be.

    Raises:
        FormatError: It is not here.
        StaleFileError: Another one is here.
    """
    dataset = open_dataset(Path(layout.path) / layout.directories[part])
    if dataset.manifest.identifier != layout.identifiers[part]:
        raise StaleFileError(
            f"{dataset.path} is not the part {part} that was served",
            path=str(dataset.path),
            remedy="put the part back that was there, or open the dataset again",
        )
    return dataset


def record_in(dataset: Dataset, what: PartArray) -> FileRecord:
    """What a part's manifest says of an array (InputError where there is none)."""
    if isinstance(what.owner, str):
        held = dataset.node_record(what.owner).arrays
    elif what.kind == "edge":
        held = dataset.edge_record(what.owner).arrays["csc"]
    else:
        held = dataset.edge_record(what.owner).layouts["csc"]
    if what.name not in held:
        raise InputError(
            f"{dataset.path} has no {what.name!r}",
            path=str(dataset.path),
            remedy="make all parts of one partition have the same arrays: partition it again",
        )
    return held[what.name]


def _of(out: npt.NDArray[Any], size: Size, target: Ids | None) -> tuple[Ids, Any]:
    """Pointers as rows of int64, and which rows they are."""
    rows = out.reshape(-1).view(np.int64).reshape(-1, size[1] // 8)
    return rows, slice(None) if target is None else target


def _scratch(wish: Wish, counts: npt.NDArray[np.uint32]) -> Ids:
    """A table for subsets of many picks, where some may be drawn."""
    drawn = wish.fan_out > SCANNED_PICKS and not wish.replace
    if not drawn or not bool((counts >= wish.fan_out).any()):
        return _NO_TABLE
    return np.empty(1 << (2 * wish.fan_out - 1).bit_length(), np.int64)
