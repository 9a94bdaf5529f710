"""Array files of ids read at random: some of them by place, or their places by binary search.

Bottleneck: the device's random reads. A search is a binary search over the first ids of the file's
pages, for all wanted ids at once: at each step the pages that it looks at are asked for together,
so that a cold search of a thousand million ids takes about 21 reads one after another, whatever the
number of ids that are wanted. The page found was looked at on the way and is searched in place.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.graph.paged import PagedArray
from overspill.kernels.translate import rank_ids
from overspill.linux.fetch import PAGE_BYTES
from overspill.storage.records import FileRecord

_Ids = npt.NDArray[np.int64]


class _IdFile:
    """An opened array file of int32 or int64. Threads may share it.

    Args:
        path: The array file.
        record: What the manifest says of it.
        stride_bytes: From one id that is read by its place to the next; default: each is.

    Raises:
        StaleFileError: The file is not the one the record describes.
        MappingError: The system refused to map it.
    """

    def __init__(self, path: Path, record: FileRecord, *, stride_bytes: int | None = None) -> None:
        self._dtype = np.dtype(record.dtype)
        size = self._dtype.itemsize
        self._array = PagedArray(path, record, stride_bytes=stride_bytes or size, span_bytes=size)


class IdArray(_IdFile):
    """Ids that are read by place."""

    def at(self, places: _Ids) -> _Ids:
        """What stands at some places, which must be within the array, as int64.

        Raises:
            StaleFileError: The file changed since it was opened.
        """
        self._array.check_unchanged()
        found = np.empty(places.size, self._dtype)
        self._array.take(places, found)
        return found.astype(np.int64, copy=False)


class SortedIds(_IdFile):
    """Strictly increasing ids, to be searched: the first of each page is read by place."""

    def __init__(self, path: Path, record: FileRecord) -> None:
        super().__init__(path, record, stride_bytes=PAGE_BYTES)
        self._ids = self._array.elements(self._dtype)
        self._ids_a_page = PAGE_BYTES // self._dtype.itemsize

    def find(self, wanted: _Ids) -> _Ids:
        """The place of each id, int64 (ids,), or -1 where it is not there; 64 bytes an id.

        Raises:
            StaleFileError: The file changed since it was opened.
        """
        ranks = np.full(wanted.size, -1, dtype=np.int64)
        if not wanted.size or not self._ids.size:
            return ranks
        self._array.check_unchanged()
        order = np.argsort(wanted)
        rank_ids(wanted, order, self._pages_of(wanted[order]), self._ids, self._ids_a_page, ranks)
        return ranks

    def _pages_of(self, wanted: _Ids) -> _Ids:
        """The page on which each id would stand; -1 before all."""
        low = np.full(wanted.size, -1, dtype=np.int64)
        high = np.full(wanted.size, -(-self._ids.size // self._ids_a_page), dtype=np.int64)
        while (undecided := np.flatnonzero(high - low > 1)).size:
            middle = (low[undecided] + high[undecided]) // 2
            firsts = np.empty(undecided.size, dtype=self._dtype)
            self._array.take(middle, firsts)
            after = wanted[undecided] >= firsts
            low[undecided[after]] = middle[after]
            high[undecided[~after]] = middle[~after]
        return low
