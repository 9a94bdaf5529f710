"""Sorted rows read once, in file order: page by page where they lie apart, else by a scan.

Bottleneck: the device. Algorithm: the file is looked at by stretches of 8 MiB. Where more than a
quarter of a stretch's pages are wanted, a scan reads it sooner than as many random reads would (17
to 35%, by the device): past the page cache, in pieces that several threads read ahead of the copy.
Stretches with fewer go to `PagedArray.take`, which asks for their pages in windows, neighbours
merged, in requests of at most 128 KiB, beyond which they would be cut off silently.

Memory: 16 MiB in pieces beside that of `take`, whatever the rows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt

from overspill.errors import MappingError, StaleFileError
from overspill.graph.item_reader import ItemReader
from overspill.graph.paged import PagedArray
from overspill.kernels.rows import take_rows
from overspill.kernels.words import widest_word
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, DirectReader, aligned_bytes
from overspill.linux.fetch import PAGE_BYTES, REQUEST_BYTES
from overspill.linux.identity import identify_file

Ids = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
SCAN_BYTES = 16 << 20
_STRETCH_BYTES = 8 << 20
_PIECE_BYTES = 4 << 20
_PIECES = SCAN_BYTES // _PIECE_BYTES
_SCANNED_SHARE = 0.25
# Rows looked at together: what is worked out of them takes 32 bytes each.
_CHUNK_ROWS = 1 << 18


def read_in_order(array: ItemReader, ids: Ids, out: _Bytes) -> None:
    """Copy rows, each page read once.

    Args:
        array: Whose rows; items as long as they are apart. One that is no file of its own reads as
            it does anyway.
        ids: int64 (rows,), sorted, none twice, within the array.
        out: (rows, bytes a row), contiguous, filled in the order of `ids`.

    Raises:
        StaleFileError: The file was cut, replaced or removed since it was opened.
        MappingError: The disk refused to read.
    """
    if ids.size == 0 or array.span_bytes == 0:
        return
    if not isinstance(array, PagedArray):
        array.take(ids, out)
        return
    with ExitStack() as stack:
        scan: _Scan | None = None
        for first in range(0, ids.size, _CHUNK_ROWS):
            chunk, filled = ids[first : first + _CHUNK_ROWS], out[first : first + _CHUNK_ROWS]
            for start, stop, dense in _runs(array, chunk):
                if not dense:
                    array.take(chunk[start:stop], filled[start:stop])
                    continue
                scan = scan or stack.enter_context(_Scan(array))
                scan.copy(chunk[start:stop], filled[start:stop])


def _runs(array: PagedArray, ids: Ids) -> Iterator[tuple[int, int, bool]]:
    """Cut sorted ids into runs of stretches that are to be scanned, or not."""
    stride = array.stride_bytes
    if stride >= REQUEST_BYTES:  # each row is a long read anyway
        yield 0, ids.size, False
        return
    unit = max(stride, PAGE_BYTES)
    places = ids * stride
    starts = np.flatnonzero(np.diff(places // _STRETCH_BYTES, prepend=-1))
    wanted = np.add.reduceat(np.diff(places // unit, prepend=-1) != 0, starts, dtype=np.int64)
    dense = wanted > _SCANNED_SHARE * (_STRETCH_BYTES // unit)
    turns = np.flatnonzero(np.diff(dense, prepend=not dense[0]))
    cuts = [*starts[turns].tolist(), ids.size]
    for place, turn in enumerate(turns.tolist()):
        yield cuts[place], cuts[place + 1], bool(dense[turn])


class _Scan:
    """Reads stretches of a file whole, by threads that live as long as a copy."""

    def __init__(self, array: PagedArray) -> None:
        self._array, self._path = array, array.mapping.path
        self._start = array.payload_offset
        self._rows = max(1, _PIECE_BYTES // array.stride_bytes)
        size = self._rows * array.stride_bytes + 2 * DIRECT_ALIGNMENT_BYTES
        self._memory = [aligned_bytes(size) for _ in range(_PIECES)]
        self._stack = ExitStack()

    def __enter__(self) -> _Scan:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._stale(f"it cannot be opened: {error.strerror}") from error
        self._stack.callback(os.close, fd)
        if identify_file(fd) != self._array.mapping.identity:
            self._stack.close()
            raise self._stale("it was replaced")
        self._reader = self._stack.enter_context(DirectReader(fd))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def copy(self, ids: Ids, out: _Bytes) -> None:
        """Copy sorted rows that lie close together."""
        pieces = self._pieces(ids)
        waiting: deque[tuple[tuple[int, int], int, _Bytes, Future[int]]] = deque()
        with ThreadPoolExecutor(_PIECES - 1, thread_name_prefix="overspill-scan") as pool:
            for turn, (start, stop) in enumerate(pieces):
                if len(waiting) == _PIECES - 1:
                    self._place(waiting.popleft(), ids, out)
                memory = self._memory[turn % _PIECES]
                first, last = int(ids[start]), int(ids[stop - 1]) + 1
                read = pool.submit(self._read, first, last, memory)
                waiting.append(((start, stop), first, memory, read))
            while waiting:
                self._place(waiting.popleft(), ids, out)

    def _pieces(self, ids: Ids) -> Iterator[tuple[int, int]]:
        """Which ids lie within a piece's length, one after the other."""
        start = 0
        while start < ids.size:
            stop = int(np.searchsorted(ids, ids[start] + self._rows))
            yield start, stop
            start = stop

    def _place(
        self, piece: tuple[tuple[int, int], int, _Bytes, Future[int]], ids: Ids, out: _Bytes
    ) -> None:
        (start, stop), first, memory, read = piece
        stride, skip = self._array.stride_bytes, read.result()
        rows = memory[skip : skip + (int(ids[stop - 1]) + 1 - first) * stride]
        word = widest_word(stride | out.ctypes.data | rows.ctypes.data)
        take_rows(
            rows.view(word).reshape(-1, stride // word.itemsize),
            ids[start:stop],
            first,
            out[start:stop].view(word),
        )

    def _read(self, first: int, last: int, memory: _Bytes) -> int:
        stride = self._array.stride_bytes
        try:
            return self._reader.read(self._start + first * stride, (last - first) * stride, memory)
        except EOFError as error:
            raise self._stale("it was cut") from error
        except OSError as error:
            raise MappingError(
                f"the disk refused to read: {error.strerror}",
                path=self._path,
                errno=error.errno,
                remedy="check the disk's health (dmesg), then take the file from a copy",
            ) from error

    def _stale(self, what: str) -> StaleFileError:
        return StaleFileError(
            f"an array file changed while its dataset was open: {what}",
            path=self._path,
            remedy="open the dataset again; build it again if its files are damaged",
        )
