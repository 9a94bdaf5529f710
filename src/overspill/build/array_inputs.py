"""Named arrays of nodes and of edges: opened and checked, then stored in the dataset's order.

Rows of nodes come in their order, or with a key that finds their node; where nodes are renumbered
they are moved out of core. Rows of edges come in input order and are moved into that of a layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from overspill.build.context import BuildContext
from overspill.build.finite import FiniteCheck
from overspill.build.keyed_rows import KeyedRows
from overspill.build.moving.fill import fill_element
from overspill.build.moving.permute import RowOutput, gather_rows, scatter_rows
from overspill.build.moving.row_sources import NpyRows
from overspill.build.pipeline import prefetched
from overspill.build.readers.edges import EdgeReader, RawIds
from overspill.build.readers.features import open_features
from overspill.build.readers.npy import NpyFile
from overspill.build.readers.table import TableColumns
from overspill.build.readers.tables import TableRows, open_table
from overspill.build.spec import ArraySpec
from overspill.errors import InputError
from overspill.storage.records import FileRecord, payload_bytes

Rows = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


class Nodes(Protocol):
    """What an array needs to know of the nodes that its rows belong to."""

    name: str

    @property
    def known_count(self) -> int:
        """Number of nodes."""

    @property
    def renumbered(self) -> bool:
        """Whether nodes have other numbers than at first."""

    def renumber_all(self, first: Ids) -> Ids:
        """First numbers to node ids."""

    def find(self, raw: RawIds) -> Ids:
        """Raw ids to node ids, -1 where there is none."""

    def raw_id(self, node: int) -> str:
        """The raw id of a node, for messages."""


@dataclass(frozen=True)
class ArrayInput:
    """One named array, opened.

    Attributes:
        name: Its name.
        spec: What the build was told of it.
        source: A checked .npy file, or columns of tables.
    """

    name: str
    spec: ArraySpec
    source: NpyFile | TableRows

    @property
    def path(self) -> str:
        """The first file, for messages."""
        return self.source.path

    @property
    def dtype(self) -> str:
        """A name of `STORED_DTYPES`."""
        return self.source.type_name if isinstance(self.source, NpyFile) else self.source.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        source = self.source
        return source.shape[1:] if isinstance(source, NpyFile) else source.row_shape

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, as it is stored."""
        return payload_bytes(self.dtype, (1, *self.row_shape))

    @property
    def count(self) -> int | None:
        """Number of rows, where it is known without reading."""
        return self.source.shape[0] if isinstance(self.source, NpyFile) else self.source.count

    @property
    def nbytes(self) -> int:
        """Bytes of the input, for progress."""
        return self.source.nbytes

    @property
    def keyed(self) -> bool:
        """Whether rows find their nodes by a column of ids."""
        return self.spec.key is not None

    @property
    def parts(self) -> tuple[TableColumns, ...]:
        """The columns of each file of a table."""
        return () if isinstance(self.source, NpyFile) else self.source.parts

    def files(self) -> list[tuple[str, int]]:
        """Path and size of every file."""
        if isinstance(self.source, NpyFile):
            return [(self.source.path, self.source.file_bytes)]
        return [(part.path, part.nbytes) for part in self.source.parts]

    def require_rows(self, count: int, found_in: str, *, of: str) -> None:
        """Refuse a number of rows that contradicts what they belong to.

        Raises:
            InputError: It names the file and both numbers.
        """
        if not self.keyed and self.count is not None and self.count != count:
            raise self.wrong_rows(self.count, count, found_in, of=of)

    def wrong_rows(self, rows: int, count: int, found_in: str, *, of: str) -> InputError:
        """The error of an array with another number of rows."""
        return InputError(
            f"{self.path} has {rows} rows for {count} {of}s ({found_in})",
            path=self.path,
            column=self.name,
            value=str(rows),
            remedy=f"give one row for each {of}",
        )

    def located(self, context: BuildContext, most_bytes: int) -> Iterator[tuple[str, int, Rows]]:
        """Yield pieces of rows in order, each with its file and the number of its first row."""
        if isinstance(self.source, NpyFile):
            first = 0
            name = f"reorder-{self.name}"
            for rows in NpyRows(self.source, context.directory, name).pieces(most_bytes):
                yield self.path, first, rows
                first += len(rows)
            return
        for part in self.source.parts:
            first = part.first_row
            for rows in part.pieces(most_bytes):
                yield part.path, first, rows
                first += len(rows)


def open_array(name: str, spec: ArraySpec, *, text: bool, header: bool | None = None) -> ArrayInput:
    """Open what lies in files of its own.

    Raises:
        InputError: A file is missing, damaged, or holds what cannot be stored.
    """
    if not spec.columns:
        return ArrayInput(name, spec, open_features(spec.paths[0], name))
    if not spec.paths:
        raise InputError(
            f"array {name!r} names columns of the edge files, which hold no nodes",
            column=spec.columns[0],
            remedy='say of which table: Columns("x", of="nodes.parquet", key="id")',
        )
    table = open_table(spec.paths, spec.columns, key=spec.key, text=text, header=header)
    # A file without rows may not tell the type.
    if spec.fill is not None and any(part.layout.known for part in table.parts):
        try:
            fill_element(spec.fill, table.dtype)
        except InputError as error:
            error.path, error.column = table.path, name
            raise
    return ArrayInput(name, spec, table)


def open_edge_array(name: str, spec: ArraySpec, readers: tuple[EdgeReader, ...]) -> ArrayInput:
    """Open an array of edges: of files of its own, or further columns of the edge files."""
    if spec.key is not None:
        raise InputError(
            f"edge array {name!r} has a key, but edges have no ids of their own",
            remedy="give its rows in the order of the edges, and leave the key out",
        )
    if spec.paths or not spec.columns:
        return open_array(name, spec, text=False)
    if not readers:
        raise InputError(
            f"edge array {name!r} names columns of the edge files, of which there are none",
            column=spec.columns[0],
            remedy="leave the array out, or say of which table the columns are",
        )
    columns = [cast("TableColumns", reader.rows(spec.columns)) for reader in readers]
    return ArrayInput(name, spec, TableRows(columns))


def store_node_array(array: ArrayInput, nodes: Nodes, context: BuildContext) -> dict[str, Any]:
    """Store an array in the order of the nodes.

    Returns:
        As JSON holds it: "record", and "notes" with what was counted.

    Raises:
        InputError: A row is missing, repeated or belongs to no node, or a number is not finite and
            the build refuses that; names file, row and key.
    """
    storing = _NodeArray(array, nodes, context)
    if array.keyed:
        return storing.by_key()
    if nodes.renumbered:
        return storing.moved()
    return storing.in_order()


class _NodeArray:
    def __init__(self, array: ArrayInput, nodes: Nodes, context: BuildContext) -> None:
        self._array, self._nodes, self._context = array, nodes, context
        self._finite = FiniteCheck(
            array.name, array.dtype, array.row_shape, context.spec.non_finite
        )
        path = f"nodes/{nodes.name}/arrays/{array.name}.safetensors"
        shape = (nodes.known_count, *array.row_shape)
        self._output = RowOutput(context.directory, context.plan, path, array.dtype, shape)

    def in_order(self) -> dict[str, Any]:
        """Copy the rows as they come."""
        if isinstance(self._array.source, NpyFile):
            return self._elements(self._array.source)
        done = 0
        pieces = prefetched(self._array.located(self._context, self._context.plan.copy_bytes))
        with self._output.open() as writer, closing(cast("Any", pieces)):
            for path, first, rows in pieces:
                self._finite.look(rows, path=path, first_row=first)
                self._require_room(done + len(rows))
                writer.append(rows.reshape(-1))
                done += len(rows)
                self._context.progress.advance(rows.nbytes)
            self._require_all(done)
        return self._told(writer.result)

    def _elements(self, file: NpyFile) -> dict[str, Any]:
        """Copy element by element: a row may be larger than memory."""
        self._array.require_rows(self._nodes.known_count, "one a node is needed", of="node")
        context, done = self._context, 0
        rows = NpyRows(file, context.directory, f"reorder-{self._array.name}")
        pieces = prefetched(rows.elements(context.plan.copy_bytes))
        with self._output.open() as writer, closing(cast("Any", pieces)):
            for part in pieces:
                self._finite.look(part, path=file.path, first_row=0, first_item=done)
                writer.append(part)
                done += len(part)
                context.progress.advance(part.nbytes)
        return self._told(writer.result)

    def moved(self) -> dict[str, Any]:
        """Move the rows to where their nodes stand now."""
        result = scatter_rows(
            self._renumbered_pieces(), self._output, on_progress=self._context.progress.advance
        )
        return self._told(result.record)

    def _renumbered_pieces(self) -> Iterator[tuple[Ids, Rows]]:
        done = 0
        for path, first, rows in self._array.located(self._context, self._output.piece_bytes):
            self._finite.look(rows, path=path, first_row=first)
            self._require_room(done + len(rows))
            yield self._nodes.renumber_all(np.arange(done, done + len(rows))), rows
            done += len(rows)
        self._require_all(done)

    def by_key(self) -> dict[str, Any]:
        """Move each row to the node that its key names."""
        rows = KeyedRows(cast("TableRows", self._array.source), self._array.spec, self._nodes)
        result = rows.scatter(
            self._output, self._finite, on_progress=self._context.progress.advance
        )
        told = self._told(result.record)
        told["notes"] |= {
            f"filled.{self._array.name}": result.missing,
            f"dropped.{self._array.name}": result.dropped,
        }
        return told

    def _require_room(self, rows: int) -> None:
        if rows > self._nodes.known_count:
            self._require_all(rows)

    def _require_all(self, rows: int) -> None:
        count = self._nodes.known_count
        if rows != count:
            raise self._array.wrong_rows(rows, count, "more are not read", of="node")

    def _told(self, record: FileRecord) -> dict[str, Any]:
        return {"record": record.to_json(), "notes": _finite_notes(self._finite, self._array)}


def store_edge_array(
    array: ArrayInput, edge_ids: FileRecord, context: BuildContext, *, path: str, rows_read: int
) -> dict[str, Any]:
    """Store an array in the order of a layout's edges.

    Args:
        array: Its rows, one an input edge.
        edge_ids: The input row of each edge of the layout.
        context: The build.
        path: Where the array goes.
        rows_read: Number of input edges.

    Returns:
        As JSON holds it: "record", and "notes" with what was counted.

    Raises:
        InputError: Another number of rows than input edges, or a number is not finite and the
            build refuses that.
    """
    array.require_rows(rows_read, "one an edge is needed", of="edge")
    rows = _EdgeRows(array, context, rows_read)
    shape = (edge_ids.shape[0], *array.row_shape)
    output = RowOutput(context.directory, context.plan, path, array.dtype, shape)
    record = gather_rows(
        context.pieces(edge_ids), rows, output, on_progress=context.progress.advance
    )
    return {"record": record.to_json(), "notes": _finite_notes(rows.finite, array)}


class _EdgeRows:
    """The rows of an edge array, looked at as they go by."""

    def __init__(self, array: ArrayInput, context: BuildContext, count: int) -> None:
        self.count, self.dtype, self.row_shape = count, array.dtype, array.row_shape
        self._array, self._context = array, context
        self.finite = FiniteCheck(array.name, array.dtype, array.row_shape, context.spec.non_finite)

    def pieces(self, most_bytes: int) -> Iterator[Rows]:
        """Yield all rows in order."""
        done = 0
        self.finite.count = 0
        for path, first, rows in self._array.located(self._context, most_bytes):
            self.finite.look(rows, path=path, first_row=first)
            done += len(rows)
            if done > self.count:
                break
            yield rows
        if done != self.count:
            raise self._array.wrong_rows(done, self.count, "one an edge is needed", of="edge")


def _finite_notes(check: FiniteCheck, array: ArrayInput) -> dict[str, int]:
    return {f"non_finite.{array.name}": check.count} if check.count else {}
