"""The first line of a CSV file: the columns by name, or that there are none by name."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overspill.build.readers.compressed import name_inside, opened_stream
from overspill.build.readers.source import SourceFile
from overspill.errors import InputError

_HEADER_BYTES = 1 << 20
_INTEGER = re.compile(r"\s*-?[0-9]+\s*", re.ASCII)
_TABBED = (".tsv", ".tab")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class CsvHeader:
    """What the first line tells.

    Attributes:
        names: Of the columns; "0", "1" and so on where the file has no header.
        present: Whether the first line is a header.
        delimiter: Between cells.
        empty: Whether the file holds nothing.
    """

    names: tuple[str, ...]
    present: bool
    delimiter: str
    empty: bool = False


def read_header(
    source: SourceFile, *, wanted: Sequence[str] | None, header: bool | None, text: bool
) -> CsvHeader:
    """Read the first line, and decide whether it is a header where that is not told.

    It is where it names the columns wanted; it is none where all its cells are integers and ids are
    too. A file of text ids that names no known column could be either, and is refused.

    Args:
        source: The file.
        wanted: The columns that will be read; None for "src" and "dst" or the only two.
        header: What the caller says.
        text: Whether a column will be read as text.

    Raises:
        InputError: The line cannot be parsed, or it is not clear what it is.
    """
    delimiter = "\t" if Path(name_inside(source.path)).suffix.lower() in _TABBED else ","
    cells = _first_line(source, delimiter)
    positions = tuple(map(str, range(len(cells))))
    if not cells and header is False:
        return CsvHeader(tuple(wanted or ("0", "1")), False, delimiter, empty=True)
    if not cells:
        raise InputError(
            f"{source.path} is empty: it names no columns",
            path=source.path,
            column=(wanted or ("src",))[0],
            remedy='a file without edges is a header alone, such as "src,dst"',
        )
    if header is None:
        header = _is_header(source.path, cells, wanted, text)
    return CsvHeader(tuple(cells) if header else positions, header, delimiter)


def _is_header(path: str, cells: list[str], wanted: Sequence[str] | None, text: bool) -> bool:
    numbers = [_INTEGER.fullmatch(cell) is not None for cell in cells]
    if all(numbers) and not text:
        return False
    if set(wanted or ("src", "dst")) <= set(cells) and not all(numbers):
        return True
    if any(numbers) or (text and wanted is None):
        raise InputError(
            f"{path}: is its first line a header, or data?",
            path=path,
            row=0,
            value=",".join(cells)[:80],
            remedy="say header=True, or header=False, which names the columns 0, 1 and so on",
        )
    return True


def _first_line(source: SourceFile, delimiter: str) -> list[str]:
    held = b""
    with opened_stream(source) as stream:
        while len(held) < _HEADER_BYTES and (piece := stream.read(_HEADER_BYTES - len(held))):
            held += piece
    if held.startswith(_UTF_16):
        raise InputError(
            f"{source.path} is UTF-16 text, and CSV is read as UTF-8",
            path=source.path,
            remedy="save it as UTF-8: iconv -f UTF-16 -t UTF-8",
        )
    text = io.StringIO(held.decode("utf-8-sig", "replace"), newline="")
    try:
        return next((row for row in csv.reader(text, delimiter=delimiter) if row), [])
    except csv.Error as error:
        raise InputError(
            f"cannot read the header of {source.path}: {error}",
            path=source.path,
            remedy="mend the file, or say header=False and columns",
        ) from error
