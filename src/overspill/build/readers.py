"""What every reader of edges offers, and which reader reads which file."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from overspill.build.npy import MAGIC
from overspill.build.source import SourceFile
from overspill.build.spec import BuildSpec
from overspill.errors import InputError

Ids = npt.NDArray[np.int64]
_MODULES = {"npy": "npy_edges", "csv": "csv_edges", "snap": "snap_edges"}


@dataclass(frozen=True)
class EdgeChunk:
    """Some edges of one file.

    Attributes:
        sources: Source ids, int64; valid until the third chunk after this one is made.
        targets: Target ids.
        first: Number of the first of these edges within the file.
        bytes_done: How far into the file the reader is.
    """

    sources: Ids
    targets: Ids
    first: int
    bytes_done: int


def id_remedy(text: str) -> str:
    """What to do about a cell that is no integer of 64 bits."""
    if not text.strip():
        return "drop the row, or fill the cell"
    try:
        whole = float(text).is_integer()
    except ValueError:
        return "number the nodes first: ids are integers (remap takes any of 64 bits, no names)"
    return "save the ids as int64" if whole else "ids are integers: is this the right column?"


class EdgeReader(Protocol):
    """Reads one file, in order, in constant memory.

    Attributes:
        path: The file.
        nbytes: Its size.
        columns: What errors call the sources' and the targets' column.
        count: Number of edges, where the format tells without reading.
    """

    path: str
    nbytes: int
    columns: tuple[str, str]
    count: int | None

    def chunks(self, most_edges: int) -> Iterator[EdgeChunk]:
        """Yield all edges; InputError at a cell that is not an integer of 64 bits."""

    def locate(self, edge: int) -> int:
        """The row of an edge, as the format's users count rows; may read the file again."""


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


def open_edges(source: SourceFile, spec: BuildSpec) -> EdgeReader:
    """Open one file of edges and check what can be checked without reading it.

    Raises:
        InputError: The file cannot be read as edges.
    """
    # By name: a build without CSV does not pay for pyarrow's memory.
    module = importlib.import_module(f"overspill.build.{_MODULES[sniff_format(source)]}")
    return cast("EdgeReader", module.open_reader(source, spec))
