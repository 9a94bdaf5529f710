"""What every reader of edges offers, and which reader reads which file."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from overspill.build.npy import MAGIC
from overspill.build.source import SourceFile
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError

Ids = npt.NDArray[np.int64]
_MODULES = {"npy": "npy_edges", "csv": "csv_edges", "snap": "snap_edges"}
_INTEGERS_ONLY = ("npy", "snap")


@dataclass(frozen=True)
class Strings:
    """Ids that are text.

    Attributes:
        offsets: int64 (n + 1,), where each begins in `data`, and the end of the last.
        data: uint8, UTF-8, one string after another.
    """

    offsets: Ids
    data: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def text(self, place: int) -> str:
        """One of them, for messages."""
        held = self.data[self.offsets[place] : self.offsets[place + 1]]
        return held.tobytes().decode("utf-8", "replace")


RawIds = Ids | Strings


@dataclass(frozen=True)
class EdgeChunk:
    """Some edges of one file.

    Attributes:
        sources: Source ids, int64 or text; valid until the third chunk after this one is made.
        targets: Target ids.
        first: Number of the first of these edges within the file.
        bytes_done: How far into the file the reader is.
    """

    sources: RawIds
    targets: RawIds
    first: int
    bytes_done: int


class RowSource(Protocol):
    """The rows of one array, in order, read in constant memory.

    Attributes:
        path: What errors call it.
        dtype: A name of `STORED_DTYPES`.
        row_shape: Shape of one row.
        count: Number of rows; None where only reading tells.
        nbytes: Bytes of the input, for progress.
    """

    path: str
    dtype: str
    row_shape: tuple[int, ...]
    count: int | None
    nbytes: int

    def pieces(self, most_bytes: int) -> Iterator[npt.NDArray[Any]]:
        """Yield (k, *row_shape) little-endian pieces of about so many bytes, one row at least.

        A type that numpy lacks comes as unsigned bits. A piece is valid until the third after it.
        """


def id_remedy(text: str) -> str:
    """What to do about a cell that is no integer of 64 bits."""
    if not text.strip():
        return "drop the row, or fill the cell"
    try:
        whole = float(text).is_integer()
    except ValueError:
        return "say that ids are text: ids='text'"
    return "save the ids as int64" if whole else "ids are integers: is this the right column?"


class EdgeReader(Protocol):
    """Reads one file, in order, in constant memory.

    Attributes:
        path: The file.
        nbytes: Its size.
        columns: What errors call the sources' and the targets' column.
        count: Number of edges, where the format tells without reading.
        text: Whether the sources, and the targets, come as `Strings`.
    """

    path: str
    nbytes: int
    columns: tuple[str, str]
    count: int | None
    text: tuple[bool, bool]

    def chunks(self, most_edges: int) -> Iterator[EdgeChunk]:
        """Yield all edges; InputError at a cell that is null or no id of this kind."""

    def locate(self, edge: int) -> int:
        """The row of an edge, as the format's users count rows; may read the file again."""

    def rows(self, columns: tuple[str, ...]) -> RowSource:
        """Further columns as an array, one row an edge; InputError where there are none such."""


def sniff_format(source: SourceFile) -> str:
    """Tell "npy", "csv" or "snap" by the first bytes and the name.

    Raises:
        InputError: The file is of none of these formats.
    """
    with source.opened() as file:
        start = file.read(len(MAGIC))
    suffix = Path(source.path).suffix.lower()
    if start == MAGIC or suffix == ".npy":
        return "npy"
    if suffix == ".csv":
        return "csv"
    if suffix == ".txt":
        return "snap"
    raise InputError(
        f"{source.path}: edges cannot be read from a {suffix or 'nameless'} file",
        path=source.path,
        remedy="give .csv with a header, .txt (pairs apart by tabs or spaces, as SNAP has them) "
        "or .npy",
    )


def open_edges(
    source: SourceFile, spec: EdgeSpec, *, text: tuple[bool, bool] = (False, False)
) -> EdgeReader:
    """Open one file of edges and check what can be checked without reading it.

    Args:
        source: The file.
        spec: How its edge type is read.
        text: Whether sources and targets are to be read as text where the format leaves it open.

    Raises:
        InputError: The file cannot be read as edges.
    """
    # By name: a build without CSV does not pay for pyarrow's memory.
    kind = sniff_format(source)
    if any(text) and kind in _INTEGERS_ONLY:
        raise InputError(
            f"{source.path} holds integers, not text",
            path=source.path,
            remedy="leave ids='text' out",
        )
    module = importlib.import_module(f"overspill.build.{_MODULES[kind]}")
    return cast("EdgeReader", module.open_reader(source, spec, text))


def no_columns(path: str, columns: tuple[str, ...]) -> InputError:
    """The error of a format whose files hold pairs of ids and nothing else by name."""
    return InputError(
        f"{path} has no columns by name, so none is called {columns[0]!r}",
        path=path,
        column=columns[0],
        remedy="give the array as a file of its own, one row an edge",
    )
