"""Rows of nodes that find their places by a column of raw ids.

Bottleneck: the device: `scatter` moves the rows. Errors speak of the files and raw
ids that people gave, not of the places within the dataset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from overspill.build.finite import FiniteCheck
from overspill.build.moving.permute import (
    MissingPositionError,
    RepeatedPositionError,
    RowOutput,
    ScatterResult,
    scatter_rows,
)
from overspill.build.readers.edges import RawIds, Strings
from overspill.build.readers.tables import TableRows
from overspill.build.spec import ArraySpec
from overspill.errors import InputError

Ids = npt.NDArray[np.int64]


class FoundNodes(Protocol):
    """Nodes by their raw ids."""

    name: str

    def find(self, raw: RawIds) -> Ids:
        """Raw ids to node ids, -1 where there is none."""

    def raw_id(self, node: int) -> str:
        """The raw id of a node, for messages."""


class KeyedRows:
    """The rows of one array, each with the raw id of its node.

    Args:
        table: The rows and their keys.
        spec: What the build was told of them.
        nodes: The nodes they belong to.
    """

    def __init__(self, table: TableRows, spec: ArraySpec, nodes: FoundNodes) -> None:
        self._table, self._spec, self._nodes = table, spec, nodes
        # Of each file: the number of its first row among all rows, its path, and what it calls it.
        self._files: list[tuple[int, str, int]] = []

    def scatter(
        self, output: RowOutput, finite: FiniteCheck, *, on_progress: Callable[[int], None]
    ) -> ScatterResult:
        """Move each row to its node.

        Raises:
            InputError: A row belongs to no node, or a node has no row and there is no fill value,
                or has two; names file, row and key.
        """
        pieces = self._pieces(output.piece_bytes, finite)
        try:
            return scatter_rows(pieces, output, fill=self._spec.fill, on_progress=on_progress)
        except RepeatedPositionError as error:
            raise self._repeated(error) from error
        except MissingPositionError as error:
            raise self._missing(error) from error

    def _pieces(self, most_bytes: int, finite: FiniteCheck) -> Iterator[tuple[Ids, Any]]:
        done = 0
        for keys, rows, path, first in self._table.keyed_pieces(most_bytes):
            if not self._files or self._files[-1][1] != path:
                self._files.append((done, path, first))
            finite.look(rows, path=path, first_row=first)
            positions = self._nodes.find(keys)
            if self._spec.fill is None and len(positions) and int(positions.min()) < 0:
                raise self._unknown(keys, int(np.argmin(positions)), path, first)
            yield positions, rows
            done += len(rows)

    def _unknown(self, keys: RawIds, place: int, path: str, first: int) -> InputError:
        return InputError(
            f"a row belongs to no node of type {self._nodes.name!r}",
            path=path,
            row=first + place,
            column=self._spec.key,
            value=keys.text(place) if isinstance(keys, Strings) else str(keys[place]),
            remedy="drop such rows, or give fill=, which drops and counts them",
        )

    def _missing(self, error: MissingPositionError) -> InputError:
        raw = self._nodes.raw_id(error.position)
        return InputError(
            f"{error.missing} nodes of type {self._nodes.name!r} have no row in "
            f"{self._table.path}: {raw!r} is the first",
            path=self._table.path,
            column=self._spec.key,
            value=raw,
            remedy="add the rows, or give fill=, a value for them",
        )

    def _repeated(self, error: RepeatedPositionError) -> InputError:
        raw = self._nodes.raw_id(error.position)
        told, path, row = "", self._table.path, None
        if error.rows is not None:
            (one, first), (path, row) = map(self._located, error.rows)
            told = f": row {first} of {one} and row {row} of {path}"
        return InputError(
            f"two rows have the key {raw!r}{told}",
            path=path,
            row=row,
            column=self._spec.key,
            value=raw,
            remedy="keep one row a key",
        )

    def _located(self, number: int) -> tuple[str, int]:
        """The file of a row among all rows, and its number there."""
        starts = [start for start, _, _ in self._files]
        start, path, first = self._files[bisect_right(starts, number) - 1]
        return path, first + number - start
