"""Edges and tables from TFRecord files of tf.Example, plain or compressed, without TensorFlow.

Bottleneck: the kernel that checks each record's checksums and walks its wire form. Every record
holds every feature that is asked for, with as many values as the first one has. Memory is a few
blocks; a record takes at most 64 MiB. Rows are records, counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from overspill.build.readers.edges import RawIds, Strings
from overspill.build.readers.source import SourceFile
from overspill.build.readers.table import Layout, TableChunk, TableEdges, require_columns
from overspill.build.readers.tfrecord_schema import KIND_NAMES, Feature
from overspill.build.readers.tfrecord_stream import ExampleBlock, ExampleStream
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError
from overspill.kernels.tfrecord import BYTES, FLOATS, INTEGERS, copy_spans

_MOST_ROWS = 1 << 14
_NAMED_PAIRS = (("src", "dst"), ("src_id", "dst_id"), ("source", "target"), ("from", "to"))
_NO_BYTES = np.zeros(0, np.uint8)
_CONTINUES = 0x80  # the first two bits of a byte within a UTF-8 character are 10


class TfRecordTable:
    """One file of records."""

    first_row = 0

    def __init__(self, source: SourceFile) -> None:
        self.path, self.nbytes = source.path, source.nbytes
        self._stream = ExampleStream(source)
        features = self._stream.features()
        self.count = 0 if features is None else None
        self.features = features or {}
        self.names: Sequence[str] = tuple(self.features)

    def require_ids(self, column: str) -> bool:
        """Refuse what is not one integer, or one piece of text, a record."""
        if self.count == 0:
            return False
        feature = self.features[column]
        if feature.kind == FLOATS or feature.count != 1:
            raise InputError(
                f"ids are one int64 or one text a record; feature {column!r} of {self.path} holds "
                f"{_told(feature)}",
                path=self.path,
                column=column,
                value=_told(feature),
                remedy='name the features of ids: columns=("from", "to")',
            )
        if feature.kind == BYTES:
            # Compiled now, as the parser was by the first record: a build then plans its memory.
            nothing = np.zeros(0, np.int64)
            copy_spans(np.frombuffer(b"", np.uint8), nothing, np.zeros(1, np.int64), _NO_BYTES)
        return feature.kind == BYTES

    def layout(self, columns: Sequence[str]) -> Layout:
        """How these features look; the first record gives the length of lists."""
        if self.count == 0:
            return Layout("float32", (), known=False)
        held = [self.features[name] for name in columns]
        for name, feature in zip(columns, held, strict=True):
            alone = len(held) == 1 or feature.count == 1
            if feature.kind == BYTES or feature.kind != held[0].kind or not alone:
                raise self._no_column(name, feature)
        shape = (len(held),) if len(held) > 1 else () if held[0].count == 1 else (held[0].count,)
        return Layout("int64" if held[0].kind == INTEGERS else "float32", shape)

    def _no_column(self, name: str, feature: Feature) -> InputError:
        return InputError(
            f"feature {name!r} of {self.path} holds {_told(feature)}, which makes no column of an "
            "array",
            path=self.path,
            column=name,
            value=_told(feature),
            remedy="name one feature of numbers, or several of one number and one kind each",
        )

    def read(
        self, ids: Sequence[str], values: Sequence[str], most_rows: int
    ) -> Iterator[TableChunk]:
        """Yield all rows; InputError at a record that is damaged, cut, or lacks a feature."""
        if self.count == 0:
            return
        layout = self.layout(values) if values else None
        names = tuple(dict.fromkeys((*ids, *values)))
        features = {name: self.features[name] for name in names}
        first = 0
        for block in self._stream.blocks(features, max(1, min(most_rows, _MOST_ROWS))):
            found = tuple(self._ids(block, name, first) for name in ids)
            rows = None
            if layout is not None:
                parts = [block.columns[name] for name in values]
                rows = parts[0] if len(parts) == 1 else np.concatenate(parts, 1)
                rows = rows.reshape(block.count, *layout.row_shape)
            yield TableChunk(found, rows, first, block.bytes_done)
            first += block.count

    def _ids(self, block: ExampleBlock, name: str, first: int) -> RawIds:
        column = block.columns[name]
        if self.features[name].kind == INTEGERS:
            return column[:, 0]
        offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(column[:, 1], out=offsets[1:])
        data = np.empty(offsets[-1], np.uint8)
        copy_spans(block.text, column.reshape(-1), offsets, data)
        strings = Strings(offsets, data)
        if not _is_utf8(strings):
            self._refuse_bytes(strings, name, first)
        return strings

    def _refuse_bytes(self, strings: Strings, name: str, first: int) -> None:
        for place in range(len(strings)):
            held = strings.data[strings.offsets[place] : strings.offsets[place + 1]].tobytes()
            try:
                held.decode()
            except UnicodeDecodeError as error:
                raise InputError(
                    "an id is not UTF-8",
                    path=self.path,
                    row=first + place,
                    column=name,
                    value=strings.text(place)[:80],
                    remedy="write ids as int64, or as text",
                ) from error


def _told(feature: Feature) -> str:
    return f"{feature.count} {KIND_NAMES[feature.kind]}"


def _is_utf8(strings: Strings) -> bool:
    try:
        strings.data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    # Together they are text; so is each, if none begins within a character.
    begins = strings.offsets[:-1][np.diff(strings.offsets) > 0]
    return not bool(((strings.data[begins] & 0xC0) == _CONTINUES).any())


def open_reader(source: SourceFile, spec: EdgeSpec, _text: tuple[bool, bool]) -> TableEdges:
    """Find the two features; see `edges.open_edges`."""
    table = TfRecordTable(source)
    wanted = spec.columns
    if wanted is None:
        pairs = (pair for pair in _NAMED_PAIRS if set(pair) <= set(table.names))
        wanted = next(pairs, _NAMED_PAIRS[0])
    if table.count != 0:
        # Two features of any names will not do: a map has no order, so which is the source?
        require_columns(source.path, table.names, wanted)
    return TableEdges(table, wanted)


def open_table_file(
    source: SourceFile, _columns: Sequence[str], _text: Sequence[str], _header: bool | None
) -> TfRecordTable:
    """Open the file; see `tables.open_table`."""
    return TfRecordTable(source)
