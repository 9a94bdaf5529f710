"""What every reader of edges offers, and which reader reads which file."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from overspill.build.readers.compressed import compression_of, name_inside
from overspill.build.readers.npy import MAGIC
from overspill.build.readers.source import SourceFile
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError

Ids = npt.NDArray[np.int64]
_MODULES = {
    "npy": "npy_edges",
    "npz": "npz_edges",
    "csv": "csv_edges",
    "snap": "snap_edges",
    "parquet": "parquet_edges",
    "arrow": "arrow_edges",
    "tfrecord": "tfrecord_edges",
}
_INTEGERS_ONLY = ("npy", "npz", "snap")
_MAGICS = {
    MAGIC: "npy",
    b"PAR1": "parquet",
    b"PK\x03\x04": "npz",
    b"PK\x05\x06": "npz",  # an archive of nothing
    b"ARROW1": "arrow",
}
_SUFFIXES = {
    ".npy": "npy",
    ".npz": "npz",
    ".parquet": "parquet",
    ".parq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".tab": "csv",
    ".txt": "snap",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}
_STREAMED = ("csv", "snap", "tfrecord")
_KNOWN = (
    "Parquet, Arrow (.arrow, .feather), .npy, .npz, CSV (.csv, or .tsv apart by tabs), SNAP text "
    "(.txt) or TFRecord (.tfrecord); the last three also as .gz or .zst"
)


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


class InputRows(Protocol):
    """The rows of one array, in order, read in constant memory.

    Attributes:
        path: What errors call it.
        dtype: A name of `STORED_DTYPES`.
        row_shape: Shape of one row.
        first_row: The number that errors give to the first row.
        count: Number of rows; None where only reading tells.
        nbytes: Bytes of the input, for progress.
    """

    path: str
    dtype: str
    row_shape: tuple[int, ...]
    first_row: int
    count: int | None
    nbytes: int

    def pieces(self, most_bytes: int) -> Iterator[npt.NDArray[Any]]:
        """Yield (k, *row_shape) little-endian pieces of about so many bytes, one row at least.

        A type that numpy lacks comes as unsigned bits. A piece is valid until the third after it.
        """


def id_remedy(text: str, *, of_text: str = "say that ids are text: ids='text'") -> str:
    """What to do about a cell that is no integer of 64 bits; `of_text` where it is no number."""
    if not text.strip():
        return "drop the row, or fill the cell"
    try:
        whole = float(text).is_integer()
    except ValueError:
        return of_text
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

    def rows(self, columns: tuple[str, ...]) -> InputRows:
        """Further columns as an array, one row an edge; InputError where there are none such."""


def sniff_format(source: SourceFile) -> str:
    """Tell a format by the first bytes, else by the name; a key of the readers' modules.

    Raises:
        InputError: The file is of no format that is read.
    """
    compression = compression_of(source)
    if compression is None:
        with source.opened() as file:
            start = file.read(max(map(len, _MAGICS)))
        for magic, kind in _MAGICS.items():
            if start.startswith(magic):
                return kind
    name = Path(source.path).name
    suffix = Path(name_inside(name)).suffix.lower()
    # Shards: "edges.tfrecord-00000-of-00010".
    found = "tfrecord" if ".tfrecord-" in name else _SUFFIXES.get(suffix)
    if found is None:
        raise InputError(
            f"{source.path}: edges cannot be read from a {suffix or 'nameless'} file",
            path=source.path,
            remedy=f"give {_KNOWN}",
        )
    if compression is not None and found not in _STREAMED:
        raise InputError(
            f"{source.path} is a compressed {suffix} file, which is not read from end to end",
            path=source.path,
            remedy="decompress it first; of compressed files, CSV, SNAP text and TFRecord are read",
        )
    return found


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
    kind = sniff_format(source)
    if any(text) and kind in _INTEGERS_ONLY:
        raise InputError(
            f"{source.path} holds integers, not text",
            path=source.path,
            remedy="leave ids='text' out, or save the text as CSV, Parquet or Arrow",
        )
    # By name: a build of .npy or SNAP text does not pay for pyarrow's memory.
    module = importlib.import_module(f"overspill.build.readers.{_MODULES[kind]}")
    return cast("EdgeReader", module.open_reader(source, spec, text))


def no_columns(path: str, columns: tuple[str, ...]) -> InputError:
    """The error of a format whose files hold pairs of ids and nothing else by name."""
    return InputError(
        f"{path} has no columns by name, so none is called {columns[0]!r}",
        path=path,
        column=columns[0],
        remedy="give the array as a file of its own, one row an edge",
    )
