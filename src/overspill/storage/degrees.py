"""How many neighbours the rows of a layout have, counted from its row pointers alone.

Bottleneck: the device, 8 bytes a row, read once and in order. Algorithm: degrees below a limit are
counted one by one, which makes their median exact; larger ones by powers of two. Memory: a few
pieces, whatever the number of rows. Page cache: as it was; direct reads go past it, and where a
file system has none, a piece is dropped again unless most of it was there before.
Limits: a median beyond the limit is known to its power of two.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.errors import FormatError, MappingError, StaleFileError
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, DirectReader, aligned_bytes
from overspill.storage.arrays import open_regular, read_array_info
from overspill.storage.records import FileRecord

Degrees = npt.NDArray[np.int64]
_PIECE_BYTES = 2 << 20
_COUNTED_ALONE = 1 << 16
_POWERS = 64


@dataclass(frozen=True)
class DegreeBin:
    """How many rows have so many neighbours.

    Attributes:
        least: The smallest degree in the bin: 0, or a power of two.
        most: The largest.
        rows: Rows whose degree lies between them.
    """

    least: int
    most: int
    rows: int


@dataclass(frozen=True)
class DegreeDistribution:
    """How the edges of a layout spread over its rows.

    Attributes:
        rows: Number of rows.
        edges: Number of edges.
        largest: The largest degree; 0 without rows.
        mean: Edges a row; 0 without rows.
        median: The least degree that half of the rows do not exceed; from 65,536 on, the power of
            two at or below it.
        bins: In order from degree 0 up to the largest, empty ones included.
    """

    rows: int
    edges: int
    largest: int
    mean: float
    median: int
    bins: tuple[DegreeBin, ...]


def degree_distribution(
    path: str | Path,
    record: FileRecord,
    *,
    edges: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> DegreeDistribution:
    """Count degrees from an ``indptr`` file.

    Reads 8 bytes a row once, at the device's speed, in 10 MiB of memory, and leaves the page cache
    as it was. Threads may count at the same time.

    Args:
        path: The file.
        record: What the manifest says of it: int64 (rows + 1,).
        edges: How many edges the manifest says the layout has.
        on_progress: Called with the bytes done of those read.

    Raises:
        StaleFileError: The file is gone, cut, or another one.
        FormatError: The row pointers do not begin at 0, decrease, or do not end at the number of
            edges; or it is no such file.
        MappingError: The disk refused.
    """
    info = read_array_info(path)
    if (info.dtype, len(info.shape), info.shape) != ("int64", 1, record.shape):
        raise StaleFileError(
            f"{path} holds {info.dtype} {info.shape} where int64 {record.shape} was recorded",
            path=str(path),
            remedy="the file was replaced: build the dataset again",
        )
    tally = _Tally(str(path), edges)
    done = 0
    for pointers in _pieces(Path(path), info.payload_offset, 8 * info.shape[0]):
        tally.add(pointers)
        done += pointers.nbytes
        on_progress(done)
    return tally.result()


class _Tally:
    def __init__(self, path: str, edges: int) -> None:
        self._path, self._edges = path, edges
        self._alone = np.zeros(_COUNTED_ALONE, np.int64)
        self._powers = np.zeros(_POWERS, np.int64)
        self._rows = self._largest = self._last = 0
        self._begun = False

    def add(self, pointers: Degrees) -> None:
        if not self._begun and len(pointers) and pointers[0] != 0:
            raise self._damaged("do not begin at 0")
        before, self._begun = self._begun, True
        if before:
            pointers = np.concatenate([[self._last], pointers])
        # Compared, since a difference may wrap round.
        falls = pointers[1:] < pointers[:-1]
        if falls.any():
            raise self._damaged(f"decrease at place {self._rows + int(np.argmax(falls)) + 1}")
        if pointers[-1] > self._edges:
            raise self._wrong_end(int(pointers[-1]))
        degrees = np.diff(pointers)
        if len(degrees):
            self._largest = max(self._largest, int(degrees.max()))
            large = degrees[degrees >= _COUNTED_ALONE]
            small = degrees if not len(large) else degrees[degrees < _COUNTED_ALONE]
            self._alone += np.bincount(small, minlength=_COUNTED_ALONE)
            # frexp's exponent of a whole number is its length in bits, and may be one too large
            # only from 2**53 on, where no row reaches.
            self._powers += np.bincount(np.frexp(large)[1], minlength=_POWERS)
        self._rows, self._last = self._rows + len(degrees), int(pointers[-1])

    def result(self) -> DegreeDistribution:
        if self._last != self._edges:
            raise self._wrong_end(self._last)
        lengths = np.frexp(np.arange(_COUNTED_ALONE))[1]
        by_length = self._powers + np.bincount(lengths, self._alone, _POWERS).astype(np.int64)
        bins = [
            DegreeBin(1 << bits >> 1, max(0, (1 << bits) - 1), int(by_length[bits]))
            for bits in range(self._largest.bit_length() + 1 if self._rows else 0)
        ]
        edges = self._last
        mean = edges / self._rows if self._rows else 0.0
        return DegreeDistribution(
            self._rows, edges, self._largest, mean, self._median(), tuple(bins)
        )

    def _median(self) -> int:
        half, sums = (self._rows + 1) // 2, np.cumsum(self._alone)
        if half <= sums[-1]:
            return int(np.searchsorted(sums, half)) if half else 0
        bits = int(np.searchsorted(sums[-1] + np.cumsum(self._powers), half))
        return 1 << (bits - 1)

    def _wrong_end(self, found: int) -> FormatError:
        return self._damaged(f"reach {found} where {self._edges} edges were recorded")

    def _damaged(self, what: str) -> FormatError:
        return FormatError(
            f"the row pointers of {self._path} {what}",
            path=self._path,
            remedy="the file is damaged: see overspill verify, and build the dataset again",
        )


def _pieces(path: Path, offset: int, nbytes: int) -> Iterator[Degrees]:
    memory = aligned_bytes(_PIECE_BYTES + 2 * DIRECT_ALIGNMENT_BYTES)
    try:
        with (
            os.fdopen(open_regular(path), "rb", buffering=0) as file,
            DirectReader(file.fileno()) as reader,
        ):
            starts = range(offset, offset + nbytes, _PIECE_BYTES)
            spans = [(at, min(_PIECE_BYTES, offset + nbytes - at)) for at in starts]
            # Asked first: read-ahead would look like pages that somebody else wanted.
            cached = [reader.is_cached(*span) for span in spans]
            dropped_from = offset
            for (at, length), keep in zip(spans, cached, strict=True):
                skip = reader.read(at, length, memory)
                yield memory[skip : skip + length].view("<i8")
                if keep:
                    dropped_from = at + length
                else:
                    # From further back: what the kernel read as one folio goes as a whole or not
                    # at all, and most lie on both sides of where a piece begins.
                    span = dropped_from, at + length - dropped_from
                    os.posix_fadvise(file.fileno(), *span, os.POSIX_FADV_DONTNEED)
    except EOFError as error:
        raise StaleFileError(
            f"{path} was cut while it was read", path=str(path), remedy="build the dataset again"
        ) from error
    except OSError as error:
        raise MappingError(
            f"{path} cannot be read: {error.strerror}",
            path=str(path),
            errno=error.errno,
            remedy="check the disk's health (dmesg), then take the file from a copy",
        ) from error
