"""What the tables that Arrow reads have in common: batches of columns to ids and rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from overspill.build.readers.arrow_ids import Where, holds_text, ids_of, require_ids
from overspill.build.readers.arrow_rows import first_length, layout_of, rows_of
from overspill.build.readers.source import SourceFile
from overspill.build.readers.table import Layout, TableChunk
from overspill.errors import InputError

Batches = Iterator[tuple[list[pa.Array], int]]
_FIRST_ROWS = 64


def keep_arrow_small() -> None:
    """Few, small pools: each thread of Arrow's keeps memory of its own."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


class ArrowTable(ABC):
    """A table by its schema; see `tables.Table`."""

    first_row = 0

    def __init__(self, source: SourceFile, schema: pa.Schema, count: int | None) -> None:
        self.path, self.nbytes, self.count = source.path, source.nbytes, count
        self.names: Sequence[str] = tuple(schema.names)
        self._source, self._schema = source, schema

    @abstractmethod
    def batches(self, columns: Sequence[str], most_rows: int) -> Batches:
        """Yield some columns of at most so many rows, and how far into the file they end."""

    def require_ids(self, column: str) -> bool:
        """Refuse a column that cannot hold ids; else whether they are text."""
        kind = self._schema.field(column).type
        require_ids(kind, self.path, column)
        return holds_text(kind)

    def layout(self, columns: Sequence[str]) -> Layout:
        """How these columns look; the first lists of a column of lists are read."""
        fields = [self._schema.field(name) for name in columns]
        layout, length = layout_of(fields, self.path)
        if length is not None:
            return layout
        with closing(cast("Any", self.batches(columns, _FIRST_ROWS))) as batches:
            for arrays, _ in batches:
                length = first_length(arrays[0])
                if length is not None:
                    return replace(layout, row_shape=(length,))
        return replace(layout, row_shape=(0,), known=False)

    def read(
        self, ids: Sequence[str], values: Sequence[str], most_rows: int
    ) -> Iterator[TableChunk]:
        """Yield all rows; InputError at a cell that is null or no id or value of its kind."""
        layout = self.layout(values) if values else None
        names = tuple(dict.fromkeys((*ids, *values)))
        first = 0
        for arrays, done in self.batches(names, most_rows):
            held = dict(zip(names, arrays, strict=True))
            where = {name: Where(self.path, name, self.first_row + first) for name in names}
            found = tuple(ids_of(held[name], where[name]) for name in ids)
            rows = None
            if layout is not None:
                rows = rows_of(
                    [held[name] for name in values], layout, [where[name] for name in values]
                )
            yield TableChunk(found, rows, first, done)
            first += len(arrays[0])


@contextmanager
def arrow_errors(path: str, kind: str) -> Iterator[None]:
    """Raise what Arrow says of a file as an InputError that names it."""
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError) as error:  # the latter of columns' names
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{path} cannot be read as {kind}: {told}",
            path=path,
            remedy="was it cut, or is it of another format? make it again",
        ) from error
    except OSError as error:  # Arrow's own, of content that is wrong, has no error number
        if error.errno is not None:
            raise
        raise InputError(
            f"{path} is damaged: {error}", path=path, remedy="fetch or make the file again"
        ) from error
