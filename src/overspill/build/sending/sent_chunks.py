"""Iterators of chunks as one stream, and whole values as one: from what a value is to its bytes.

The first chunk that holds something says what all are. Chunks of integer pairs become int64 rows of
(E, 2), since E is not known while they go; chunks of rows keep the first one's type.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np

from overspill.build.sending.frames import npy_closing
from overspill.build.sending.sent_arrays import (
    SLICE_BYTES,
    Array,
    Payload,
    edges_of,
    flat_bytes,
    ids_from,
    pair_of,
    pieces_of,
    require_pair,
    rows_of,
)
from overspill.build.sending.sent_values import (
    Pair,
    Prepare,
    Several,
    Table,
    Value,
    Whole,
    recognise,
)
from overspill.errors import InputError

_BUFFER_EDGES = SLICE_BYTES // 16
_NO_ROWS = np.empty(())
TEXT_KINDS = "OSUT"  # of numpy: objects, and three ways to hold strings


class Axis:
    """Along which axis edges lie in arrays of two axes; once told, it holds for all of them.

    Args:
        told: 1 for (2, E), 0 for (E, 2), None where the first shape that fits only one tells.
        name: What errors call the edges.
    """

    def __init__(self, told: int | None, name: str) -> None:
        self._axis, self._name = told, name

    def split(self, array: Array, what: str, first: int) -> Pair:
        """The two ends, as views; InputError at a shape that has none, or might have either."""
        fitting = [axis for axis in (0, 1) if array.ndim == 2 and array.shape[1 - axis] == 2]
        if self._axis is not None:
            fitting = [axis for axis in fitting if axis == self._axis]
        if len(fitting) != 1:
            raise self._misfit(array, what, first, ambiguous=bool(fitting))
        self._axis = fitting[0]
        apart = array if self._axis == 1 else array.T
        return Pair(apart[0], apart[1])

    def _misfit(self, array: Array, what: str, first: int, *, ambiguous: bool) -> InputError:
        wanted = {None: "(2, E) or (E, 2)", 1: "(2, E)", 0: "(E, 2)"}[self._axis]
        told = ": two edges as rows, or as columns?" if ambiguous else f" where edges want {wanted}"
        return InputError(
            f"{what} has shape {array.shape}{told}",
            path=self._name,
            row=first,
            value=str(array.shape),
            remedy="give (sources, targets), or say edge_axis=1 for (2, E), 0 for (E, 2)",
        )


def edge_payload(value: Value, name: str, *, edge_axis: int | None, prepare: Prepare) -> Payload:
    """The stream of edges.

    Args:
        value: What `recognise` made of them.
        name: What errors call them.
        edge_axis: See `Axis`.
        prepare: See `recognise`; for the chunks.
    """
    axis = Axis(edge_axis, name)
    if isinstance(value, Several):
        return _edges_in_chunks(_Chunks(value, name, prepare, edges=True), axis)
    if isinstance(value, Whole) and value.array.dtype.kind not in TEXT_KINDS:
        return edges_of(value.array, name)
    parts = _ends(value, axis, name, 0)
    if isinstance(parts, Pair) and parts.is_integer:
        return pair_of(parts.sources, parts.targets, name)
    return _in_tables(_as_tables(parts, name), name)


def row_payload(value: Value, name: str, *, prepare: Prepare) -> Payload:
    """The stream of the rows of an array, or of a table with such columns."""
    if isinstance(value, Several):
        return _rows_in_chunks(_Chunks(value, name, prepare, edges=False))
    if isinstance(value, Table):
        return _in_tables([value.held], name)
    if isinstance(value, Pair):
        raise InputError(f"{name} is a pair, not one array", path=name, remedy="give one array")
    return rows_of(value.array, name)


class _Chunks:
    """The chunks of an iterable, each told apart, the empty ones left out.

    Attributes:
        number: Of the chunk given last, from 0.
        rows: How many rows the chunks before it had.
    """

    def __init__(self, several: Several, name: str, prepare: Prepare, *, edges: bool) -> None:
        self.name, self.number, self.rows = name, -1, 0
        self._items, self._prepare, self._edges = iter(several.items), prepare, edges

    @property
    def what(self) -> str:
        return f"chunk {self.number} of {self.name}"

    def __iter__(self) -> Iterator[Table | Whole | Pair]:
        while True:
            try:
                item = next(self._items)
            except StopIteration:
                return
            except BaseException as error:
                error.add_note(f"while the build took {self.name}, after chunk {self.number}")
                raise
            self.number += 1
            yield self._told(item)

    def _told(self, item: Any) -> Table | Whole | Pair:
        value = recognise(item, self.what, edges=self._edges, prepare=self._prepare)
        if value is None or isinstance(value, Several):
            raise InputError(
                f"{self.what} is a {type(item).__module__.split('.')[0]} {type(item).__name__}",
                path=self.name,
                row=self.rows,
                remedy="yield arrays, (sources, targets), or tables",
            )
        return value


def _is_empty(value: Table | Whole | Pair) -> bool:
    if isinstance(value, Whole):
        return value.array.ndim > 0 and value.array.size == 0
    return isinstance(value, Pair) and len(value) == 0


def _ends(value: Table | Whole | Pair, axis: Axis, what: str, first: int) -> Table | Pair:
    return axis.split(value.array, what, first) if isinstance(value, Whole) else value


def _edges_in_chunks(chunks: _Chunks, axis: Axis) -> Payload:
    filled = (
        _ends(value, axis, chunks.what, chunks.rows) for value in chunks if not _is_empty(value)
    )
    first = next(filled, None)
    every = filled if first is None else itertools.chain([first], filled)
    if first is None or (isinstance(first, Pair) and first.is_integer):
        closing: dict[str, Any] = {}
        return Payload("pairs", _interleaved(every, chunks, closing), closing, edge_axis=0)
    tables = (table for parts in every for table in _as_tables(parts, chunks.what))
    return _in_tables(tables, chunks.name)


def _interleaved(
    every: Iterator[Table | Pair], chunks: _Chunks, closing: dict[str, Any]
) -> Iterator[memoryview]:
    buffer, held = np.empty((_BUFFER_EDGES, 2), np.int64), 0
    for pair in every:
        ends = _integer_ends(pair, chunks)
        done, count = 0, len(ends[0])
        while done < count:
            taken = min(count - done, len(buffer) - held)
            for column, end in enumerate(ends):
                part = ids_from(end[done : done + taken], chunks.name, chunks.rows + done, column)
                buffer[held : held + taken, column] = part
            held, done = held + taken, done + taken
            if held == len(buffer):
                yield flat_bytes(buffer)
                held = 0
        chunks.rows += count
    yield flat_bytes(buffer[:held])
    closing.update(npy_closing(buffer.dtype, (chunks.rows, 2), fortran=False))


def _integer_ends(pair: Table | Pair, chunks: _Chunks) -> tuple[Array, Array]:
    if isinstance(pair, Pair):
        require_pair(pair.sources, pair.targets, chunks.name, chunks.rows)
        if pair.is_integer:
            return pair.sources, pair.targets
    raise InputError(
        f"{chunks.what} holds no integers, as the chunks before it do",
        path=chunks.name,
        row=chunks.rows,
        remedy="yield the same kind of chunk each time, of integers",
    )


def _rows_in_chunks(chunks: _Chunks) -> Payload:
    every = iter(chunks)
    first = next(every, None)
    if first is None:
        raise InputError(
            f"{chunks.name} yielded nothing, so that its type is not known",
            path=chunks.name,
            remedy="yield at least an empty array of the right type",
        )
    both = itertools.chain([first], every)
    if isinstance(first, Table):
        return _in_tables((_held_table(value, chunks) for value in both), chunks.name)
    closing: dict[str, Any] = {}
    return Payload("npy", _rows(both, chunks, closing), closing)


def _rows(
    every: Iterator[Table | Whole | Pair], chunks: _Chunks, closing: dict[str, Any]
) -> Iterator[memoryview]:
    like, told = _NO_ROWS, False
    for value in every:
        array = value.array if isinstance(value, Whole) else _NO_ROWS
        empty = array.ndim > 0 and len(array) == 0
        if not told:
            rows_of(array, chunks.what)  # refuses what no file holds
            like, told = array[:1] if array.ndim else array, not empty
        if empty:
            continue
        yield from pieces_of(_fitting(array, like, chunks))
        chunks.rows += len(array)
    closing.update(npy_closing(like.dtype, (chunks.rows, *like.shape[1:]), fortran=False))


def _fitting(array: Array, like: Array, chunks: _Chunks) -> Array:
    same = array.ndim > 0 and array.shape[1:] == like.shape[1:]
    if not same or not np.can_cast(array.dtype, like.dtype, "safe"):
        raise InputError(
            f"{chunks.what} has {_rows_told(array)}, after {_rows_told(like)}",
            path=chunks.name,
            row=chunks.rows,
            remedy="yield rows of one shape and type",
        )
    return array.astype(like.dtype, copy=False)


def _rows_told(array: Array) -> str:
    return f"rows of {array.dtype} {array.shape[1:]}" if array.ndim else "no rows"


def _held_table(value: Table | Whole | Pair, chunks: _Chunks) -> Any:
    if isinstance(value, Table):
        return value.held
    raise InputError(
        f"{chunks.what} is no table, as the chunks before it are",
        path=chunks.name,
        remedy="yield the same kind of chunk each time",
    )


def _as_tables(parts: Table | Pair, name: str) -> Any:
    if isinstance(parts, Table):
        return [parts.held]
    return _tables().ends_of(parts.sources, parts.targets, name)


def _in_tables(tables: Iterable[Any], name: str) -> Payload:
    return cast("Payload", _tables().tables_of(tables, name))


def _tables() -> Any:
    # By name: who sends arrays alone does not pay for pyarrow.
    return importlib.import_module("overspill.build.sending.sent_tables")
