"""Stage one split of the input: read its edges once, and route each to the parts that own it.

Bottleneck: the input's bandwidth, or decoding it. Algorithm: what a build does of edges, chunk by
chunk (loops, both ways), then `staged_edges` for each layout, and `row_stager` for arrays. Memory:
`staging_bytes`, whatever the size of the split. Limits: ids are those of the nodes, 0 and on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from overspill.build.edge_policies import Edges, with_policies
from overspill.build.finite import FiniteCheck
from overspill.build.inputs import out_of_range
from overspill.build.parting.row_stager import RowCursor, RowStager
from overspill.build.parting.split_spec import (
    SplitReport,
    SplitSpec,
    StagedArray,
    Window,
    edge_file,
    row_file,
)
from overspill.build.parting.staged_edges import EdgeStager, StageSizes
from overspill.build.pipeline import prefetched
from overspill.build.readers.edges import EdgeChunk, EdgeReader, InputRows, open_edges
from overspill.build.readers.features import open_features
from overspill.build.readers.npy import NpyFile, NpyReader
from overspill.build.readers.reorder import as_they_lie
from overspill.build.readers.source import SourceFile
from overspill.build.readers.windows import within
from overspill.errors import InputError
from overspill.storage.records import numpy_view_dtype

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]
CHUNK_EDGES = 1 << 18
_PIECE_BYTES = 1 << 20
# Chunks as they are read and as they are staged, and what the interpreter itself takes.
_CHUNKS_BYTES = 12 * 16 * CHUNK_EDGES
_BASE_BYTES = 300 << 20


def staging_bytes(num_parts: int, layouts: int) -> int:
    """The memory that a process takes which stages a split."""
    pool = StageSizes.of(num_parts).pool_bytes(num_parts)
    return _BASE_BYTES + _CHUNKS_BYTES + layouts * pool


def opened_window(window: Window, spec: SplitSpec) -> EdgeReader:
    """Open a file, or a part of it, as it was when the build was planned.

    Raises:
        InputError: It cannot be read, or was changed.
    """
    source = checked_source(window)
    reader = open_edges(source, spec.edge)
    return reader if window.last is None else within(reader, window.first, window.last)


def checked_source(window: Window) -> SourceFile:
    """A file, as it was when the build was planned.

    Raises:
        InputError: It is gone, or was changed.
    """
    source = SourceFile.check(window.path)
    if (source.nbytes, source.modified_ns) != (window.nbytes, window.modified_ns):
        raise InputError(
            f"{window.path} was changed since the build was planned",
            path=window.path,
            remedy="remove the unfinished build's directory, and begin again",
        )
    return source


def stage_split(
    spec: SplitSpec, directory: Path, on_progress: Callable[[int], None] = lambda _: None
) -> SplitReport:
    """Stage a split; every file is complete and durable when this returns.

    Args:
        spec: What is staged.
        directory: Where the files go; what an attempt that was killed has left there is replaced.
        on_progress: Called with the bytes read so far.

    Raises:
        InputError: An id is out of range, or a file is wrong; names file, row, column and value.
        DiskRefusedError: The disk refused; the files are removed.
    """
    with ExitStack() as stack:
        staging = _Staging(spec, directory, stack)
        done = 0
        for window in spec.windows:
            reader = opened_window(window, spec)
            staging.begin(window, reader)
            with closing(cast("Any", prefetched(reader.chunks(CHUNK_EDGES)))) as chunks:
                for chunk in chunks:
                    staging.add(reader, chunk)
                    on_progress(done + chunk.bytes_done)
            done += reader.nbytes
        return staging.finish()


def applied_policies(spec: SplitSpec, chunk: EdgeChunk, ids: Ids | None) -> Edges:
    """The edges of a chunk as they are staged: without loops, or both ways, as the build wants."""
    edges = Edges(cast("Ids", chunk.sources), cast("Ids", chunk.targets), ids)
    alike = spec.edge.type[0] == spec.edge.type[2]
    if not alike or not (spec.drop_loops or spec.to_undirected):
        return edges
    return with_policies(edges, drop_loops=spec.drop_loops, both_ways=spec.to_undirected)[0]


def require_range(spec: SplitSpec, reader: EdgeReader, chunk: EdgeChunk) -> None:
    """Refuse a chunk with an id that is no node's.

    Raises:
        InputError: Names file, row, column and value.
    """
    counts = spec.sources.count, spec.targets.count
    ends = cast("Ids", chunk.sources), cast("Ids", chunk.targets)
    wrong = [(ids < 0) | (ids >= count) for ids, count in zip(ends, counts, strict=True)]
    if (both := wrong[0] | wrong[1]).any():
        place = int(np.argmax(both))
        end = 0 if wrong[0][place] else 1
        raise out_of_range(reader, chunk, place, end, counts[end])


class _Staging:
    def __init__(self, spec: SplitSpec, directory: Path, stack: ExitStack) -> None:
        self._spec, self._stack = spec, stack
        self._row = self._read = 0
        ends = {"csc": (spec.sources, spec.targets), "csr": (spec.targets, spec.sources)}
        self._stagers = {}
        self._row_stagers: dict[str, RowStager] = {}
        for layout in spec.layouts:
            columns, rows = ends[layout]
            self._stagers[layout] = stack.enter_context(
                EdgeStager(
                    lambda part, layout=layout: directory / edge_file(layout, part),  # type: ignore[misc]
                    rows.owners(),
                    sources=columns.count,
                    most_ids=spec.rows if spec.edge_ids else None,
                )
            )
            if spec.arrays:
                self._row_stagers[layout] = stack.enter_context(
                    RowStager(
                        lambda name, part, layout=layout: (  # type: ignore[misc]
                            directory / row_file(layout, part, name)
                        ),
                        rows.owners(),
                        tuple(spec.arrays),
                    )
                )
        self._arrays: dict[str, _ArrayRows] = {}

    def begin(self, window: Window, reader: EdgeReader) -> None:
        """Begin with a file of edges, or a part of one."""
        self._row = window.first_row or 0
        for name, array in self._spec.arrays.items():
            if name in self._arrays:
                self._arrays[name].close()
            if array is None:
                source = reader.rows(self._spec.edge.arrays[name].columns)
                self._arrays[name] = self._opened(name, _TableRows(source))
            else:
                self._arrays[name] = self._opened(name, _npy_rows(name, array, self._row))

    def _opened(self, name: str, rows: _NpyPieces | _TableRows) -> _ArrayRows:
        check = FiniteCheck(name, rows.dtype, rows.row_shape, self._spec.non_finite)
        array = _ArrayRows(name, rows, check)
        self._stack.callback(array.close)
        return array

    def add(self, reader: EdgeReader, chunk: EdgeChunk) -> None:
        spec, count = self._spec, len(chunk.sources)
        if spec.drop_loops:  # what will go names nodes as well
            require_range(spec, reader, chunk)
        ids = np.arange(self._row, self._row + count) if spec.edge_ids else None
        edges = applied_policies(spec, chunk, ids)
        for layout, stager in self._stagers.items():
            columns = (edges.sources, edges.targets)
            if layout == "csr":
                columns = columns[::-1]
            if stager.add(*columns, edges.rows) < len(edges.sources):
                require_range(spec, reader, chunk)
        if spec.arrays:
            ends = cast("Ids", chunk.sources), cast("Ids", chunk.targets)
            self._add_rows(Edges(*ends, ids))
        self._row += count
        self._read += count

    def _add_rows(self, edges: Edges) -> None:
        count, spec = len(edges.sources), self._spec
        alike = spec.edge.type[0] == spec.edge.type[2]
        rows = {name: array.take(count) for name, array in self._arrays.items()}
        ids = cast("Ids", edges.rows)
        if alike and spec.drop_loops:
            keep = edges.sources != edges.targets
            edges = Edges(edges.sources[keep], edges.targets[keep], ids[keep])
            rows, ids = {name: held[keep] for name, held in rows.items()}, ids[keep]
        for layout, stager in self._row_stagers.items():
            ends = (edges.targets, edges.sources)
            if layout == "csr":
                ends = ends[::-1]
            both = alike and spec.to_undirected
            stager.add((ends[0], ends[1] if both else None), ids, rows)

    def finish(self) -> SplitReport:
        return SplitReport(
            plan=self._spec.plan,
            rows=self._read,
            wide=any(stager.wide for stager in self._stagers.values()),
            files={layout: tuple(held.finish()) for layout, held in self._stagers.items()},
            arrays={
                name: StagedArray(dtype=array.rows.dtype, row_shape=array.rows.row_shape)
                for name, array in self._arrays.items()
            },
            array_rows={
                layout: tuple(stager.finish()) for layout, stager in self._row_stagers.items()
            },
        )


class _ArrayRows:
    """The rows of an edge array, taken as the edges come, and looked at."""

    def __init__(self, name: str, rows: _NpyPieces | _TableRows, check: FiniteCheck) -> None:
        self.rows, self._name, self._check = rows, name, check
        self._cursor = RowCursor(rows.pieces())
        self._done = rows.first

    def take(self, count: int) -> Rows:
        found = self._cursor.take(count)
        if found is None:
            raise InputError(
                f"{self.rows.path} has fewer rows than there are edges",
                path=self.rows.path,
                column=self._name,
                remedy="give one row for each edge",
            )
        found = found.reshape(count, *self.rows.row_shape)
        self._check.look(found, path=self.rows.path, first_row=self._done)
        self._done += count
        return found

    def close(self) -> None:
        self._cursor.close()


class _TableRows:
    def __init__(self, source: InputRows) -> None:
        self.path, self.dtype, self.row_shape = source.path, source.dtype, source.row_shape
        self._source, self.first = source, source.first_row

    def pieces(self) -> Iterator[Rows]:
        return self._source.pieces(_PIECE_BYTES)


class _NpyPieces:
    def __init__(self, file: NpyFile, first: int) -> None:
        self.path, self.dtype, self.row_shape = file.path, file.type_name, file.shape[1:]
        self._file, self.first = file, first

    def pieces(self) -> Iterator[Rows]:
        span = int(np.prod(self.row_shape, dtype=np.int64))
        rows = max(1, _PIECE_BYTES // max(1, span * self._file.dtype.itemsize))
        little = numpy_view_dtype(self.dtype)
        buffers = itertools.cycle([np.empty(rows * span, self._file.dtype) for _ in range(3)])
        with NpyReader(self._file) as reader:
            left = (self._file.shape[0] - self.first) * span
            for part in as_they_lie(reader.elements, self.first * span, left, buffers):
                held = part if part.dtype == little else part.astype(little)
                yield held.reshape(-1, *self.row_shape)


def _npy_rows(name: str, window: Window, first: int) -> _NpyPieces:
    checked_source(window)
    return _NpyPieces(open_features(window.path, name), first)
