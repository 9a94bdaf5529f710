"""Tables in the caller's memory as an Arrow IPC stream, whichever library holds them.

Bottleneck: the pipe; each batch is copied once. Batches are cut to bounded sizes, so that neither
end ever holds more. What a slice cannot be cut from is replaced: of a dictionary and of the views
of strings every batch would carry the whole, so both become plain columns.
Imported by name, when a table is sent: pyarrow costs memory and time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from overspill.build.sending.sent_arrays import Payload, require_pair
from overspill.errors import InputError

_ROWS = 1 << 17
_BATCH_BYTES = 4 << 20
_END = b"\xff\xff\xff\xff\0\0\0\0"
# What libraries call the method that gives their result batch by batch; newer names first.
_READERS = ("to_arrow_reader", "fetch_record_batch")
_UNCUTTABLE = re.compile("dictionary<|_view")
_VIEWS = {"string_view": pa.string(), "binary_view": pa.binary()}


def tables_of(tables: Iterable[Any], name: str) -> Payload:
    """One table or several, of one schema, one after another.

    Args:
        tables: Tables, batches, readers of batches, or what gives one of them.
        name: What errors call them.
    """
    return Payload("arrow", _messages(tables, name))


def ends_of(sources: Any, targets: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Two columns of any library, or lists, as batches with the columns src and dst."""
    require_pair(sources, targets, name)
    if _is_columnar(sources) and _is_columnar(targets):
        columns = [_guarded(pa.chunked_array, end, name) for end in (sources, targets)]
        yield from pa.Table.from_arrays(columns, ["src", "dst"]).to_batches(_ROWS)
        return
    for first in range(0, len(sources), _ROWS):
        parts = [_part(end, first, name) for end in (sources, targets)]
        yield pa.RecordBatch.from_arrays(parts, ["src", "dst"])
    if len(sources) == 0:
        yield pa.RecordBatch.from_pydict({"src": [], "dst": []}, schema=_NO_EDGES)


_NO_EDGES = pa.schema([("src", pa.int64()), ("dst", pa.int64())])


def _is_columnar(value: Any) -> bool:
    return isinstance(value, pa.Array) or hasattr(value, "__arrow_c_stream__")


def _part(end: Any, first: int, name: str) -> pa.Array:
    part = end[first : first + _ROWS]
    if hasattr(part, "__arrow_c_stream__"):
        part = _guarded(pa.chunked_array, part, name).combine_chunks()
    return part if isinstance(part, pa.Array) else _guarded(pa.array, part, name)


def _guarded(convert: Callable[[Any], Any], value: Any, name: str) -> Any:
    try:
        return convert(value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{name}: the {type(value).__name__} gives no column of one type: {error}",
            path=name,
            remedy="give integers of 64 bits, or strings",
        ) from error


def _messages(tables: Iterable[Any], name: str) -> Iterator[Any]:
    schema, rows = None, 0
    for number, table in enumerate(tables):
        for batch in _batches(table, name):
            if schema is None:
                schema = batch.schema
                yield schema.serialize()
            fitting = _fitting(batch, schema, f"chunk {number} of {name}", (name, rows))
            rows += len(batch)
            yield from (part.serialize() for part in _bounded(fitting))
    if schema is None:
        yield _NO_EDGES.serialize()
    yield _END


def _batches(table: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Batches of plain columns, at most `_ROWS` long, the first one empty: for its schema."""
    reader = _guarded(_reader, table, name)
    from_pandas = _is_pandas(table)
    with closing(reader):
        for batch in itertools.chain([_empty(reader.schema)], reader):
            columns = [_Column(column, name) for column in batch.columns]
            for first in range(0, max(1, len(batch)), _ROWS):
                parts = [column.part(first) for column in columns]
                if from_pandas:
                    parts = [_with_nan(part) for part in parts]
                yield pa.RecordBatch.from_arrays(parts, batch.schema.names)


def _reader(table: Any) -> pa.RecordBatchReader:
    if isinstance(table, pa.RecordBatchReader):
        return table
    if isinstance(table, pa.Table):
        return table.to_reader()
    if _is_pandas(table):  # its own stream has the index as a column
        return pa.Table.from_pandas(table, preserve_index=False).to_reader()
    for method in _READERS:
        if hasattr(table, method):
            return getattr(table, method)(_ROWS)
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table)
    batch = pa.record_batch(table)
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


def _is_pandas(table: Any) -> bool:
    return type(table).__module__.split(".")[0] == "pandas"


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, one) for one in schema.types], schema=schema)


class _Column:
    """A column of one batch, of which plain parts are made."""

    def __init__(self, column: pa.Array, name: str) -> None:
        self._dictionary = None
        self._held, self._type = column, column.type
        if pa.types.is_dictionary(column.type):
            values = column.dictionary
            self._held = column.indices
            self._dictionary = values.cast(_VIEWS.get(str(values.type), values.type))
        elif str(column.type) in _VIEWS:
            self._type = _VIEWS[str(column.type)]
        elif pa.types.is_nested(column.type) and _UNCUTTABLE.search(str(column.type)):
            raise InputError(
                f"{name} has a column of {column.type}, which cannot be sent",
                path=name,
                remedy="flatten it, or write the table as Parquet",
            )

    def part(self, first: int) -> pa.Array:
        part = self._held.slice(first, _ROWS)
        return part.cast(self._type) if self._dictionary is None else self._dictionary.take(part)


def _with_nan(part: pa.Array) -> pa.Array:
    """What pandas has as NaN and Arrow took for a null."""
    return pc.fill_null(part, float("nan")) if pa.types.is_floating(part.type) else part


def _fitting(
    batch: pa.RecordBatch, schema: pa.Schema, what: str, place: tuple[str, int]
) -> pa.RecordBatch:
    """The columns of `schema`, also of a batch that has them in other widths of its types."""
    if batch.schema.equals(schema):
        return batch
    parts = []
    for one in schema:
        held = batch.schema.field(one.name).type if one.name in batch.schema.names else None
        if held is None or not _is_same_kind(held, one.type):
            raise _misfit(what, one, f"{held or 'no such column'}", place)
        try:
            parts.append(batch.column(one.name).cast(one.type))
        except pa.ArrowInvalid as error:
            raise _misfit(what, one, str(error), place) from error
    return pa.RecordBatch.from_arrays(parts, schema=schema)


def _is_same_kind(held: pa.DataType, wanted: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, _is_text)
    return held == wanted or any(kind(held) and kind(wanted) for kind in kinds)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _misfit(what: str, field: pa.Field, told: str, place: tuple[str, int]) -> InputError:
    return InputError(
        f"{what} does not continue the column {field.name!r} of {field.type}: {told}",
        path=place[0],
        row=place[1],
        column=field.name,
        remedy="give all of them one schema; ids are best as int64",
    )


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if len(batch) <= 1 or batch.nbytes <= _BATCH_BYTES:
        if len(batch):
            yield batch
        return
    half = len(batch) // 2
    yield from _bounded(batch.slice(0, half))
    yield from _bounded(batch.slice(half))
