"""Parts of edge files that can be read without the rest: rows of .npy, row groups of Parquet."""

from __future__ import annotations

from typing import Protocol, cast, runtime_checkable

from overspill.build.readers.edges import EdgeReader
from overspill.build.readers.npy_edges import NpyEdges
from overspill.build.readers.table import Table, TableEdges


@runtime_checkable
class GroupedTable(Protocol):
    """A table whose rows come in groups, each readable by itself.

    Attributes:
        group_rows: Rows of each.
    """

    group_rows: tuple[int, ...]

    def within(self, first: int, last: int) -> Table:
        """The groups from `first` up to `last`; rows keep their numbers."""


def units_of(reader: EdgeReader) -> tuple[int, ...] | None:
    """Edges of each part that can be read alone; None where only the whole file can be.

    Of a .npy file the single edge is the unit: its parts are told as one.
    """
    if isinstance(reader, TableEdges) and isinstance(reader.table, GroupedTable):
        return reader.table.group_rows
    return None


def within(reader: EdgeReader, first: int, last: int) -> EdgeReader:
    """A reader of a part of a file, whose edges keep their numbers in errors.

    Args:
        reader: Of the whole file: .npy or Parquet.
        first: The first edge, or row group.
        last: Where the part ends.
    """
    if isinstance(reader, NpyEdges):
        return reader.within(first, last)
    table = cast("GroupedTable", cast("TableEdges", reader).table)
    return TableEdges(table.within(first, last), cast("TableEdges", reader).columns)
