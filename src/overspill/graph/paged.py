"""Random reads from one array file: ask for the pages that are absent, then copy.

Bottleneck: the device's random reads. Algorithm: a few pages of a request are probed by mincore;
where enough of them are absent, the items are ordered by id, and their distinct pages asked for one
window ahead of the copy, so that the device works while the processor copies and no more than two
windows are in flight. Touched unasked, each absent page would cost a synchronous read: 22k rows a
second instead of 81k, and 90 inside a small memory cgroup with read-ahead left on. Where the pages
are there, asking would take five times as long as the copy, hence the probe.

Limits: the order of a block of 2**20 items is held in memory (8 MiB); larger requests go by blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import StaleFileError
from overspill.kernels.gather import copy_items, copy_ordered_items, page_ranges
from overspill.linux.fetch import PAGE_BYTES, PageFetcher
from overspill.linux.identity import identify_file
from overspill.linux.pages import advise, resident_pages
from overspill.storage.arrays import map_array
from overspill.storage.records import FileRecord

WINDOW_ITEMS = 4096
WINDOW_BYTES = 16 << 20
BLOCK_ITEMS = 1 << 20
MOST_PROBES = 256
# Asking for a page costs about 0.6 us and touching an absent one 45: below this share, touch.
ABSENT_SHARE = 0.01
_WORDS = (np.int64, np.int32, np.int16, np.uint8)
_Ids = npt.NDArray[np.int64]


class PagedArray:
    """An array file read at random through a mapping of its own, advised RANDOM.

    Item ``i`` is the ``span_bytes`` bytes from ``i * stride_bytes`` on. Threads may read at the
    same time, and a forked child may go on; it does not pickle.

    Args:
        path: The array file.
        record: What the manifest says of it.
        stride_bytes: From one item to the next.
        span_bytes: Bytes of an item, at most twice the stride.

    Raises:
        StaleFileError: The file is not the one the record describes.
        MappingError: The system refused to map it.
    """

    def __init__(
        self, path: Path, record: FileRecord, *, stride_bytes: int, span_bytes: int
    ) -> None:
        self.mapping, payload = map_array(path, record)
        advise(self.mapping.address, self.mapping.nbytes, "random")
        self.stride_bytes, self.span_bytes = stride_bytes, span_bytes
        self._payload = payload.reshape(-1).view(np.uint8)
        self._offset = self.mapping.nbytes - self._payload.nbytes
        self._fetcher = PageFetcher(self.mapping)
        self._probed = shows_residency(path)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the array's elements."""
        return self._payload.nbytes

    def elements(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The payload as a flat array; a page that is absent is read alone as it is touched."""
        return self._payload.view(dtype)

    def check_unchanged(self) -> None:
        """Refuse to go on over a file that was cut, replaced or removed: one system call.

        A page past the end of a file that was cut would end the process by SIGBUS; a cut that
        falls between this check and the copy still does.

        Raises:
            StaleFileError: It is not the file that was mapped any more.
        """
        found = identify_file(self.mapping.path)
        if found != self.mapping.identity:
            raise StaleFileError(
                "an array file changed while its dataset was open: it was replaced, or has "
                f"{found.nbytes} bytes where it had {self.mapping.nbytes}",
                path=self.mapping.path,
                needed_bytes=self.mapping.nbytes,
                available_bytes=found.nbytes,
                remedy="open the dataset again; build it again if its files are damaged",
            )

    def take(self, ids: _Ids, out: npt.NDArray[Any]) -> None:
        """Copy items into `out`, in the order asked for. The ids must be within the array.

        Costs the copy when the pages are cached; otherwise also 24 bytes of memory an item of a
        block, and about 1 us an item on top of what the device takes.

        Args:
            ids: int64 (items,), contiguous; repeats are fine.
            out: Contiguous, ``items * span_bytes`` bytes.
        """
        if ids.size == 0 or self.span_bytes == 0:
            return
        word = self._word(out)
        words = self._payload.view(word)
        rows = out.reshape(-1).view(word).reshape(ids.size, -1)
        stride = self.stride_bytes // words.itemsize
        for start in range(0, ids.size, BLOCK_ITEMS):
            block, target = ids[start : start + BLOCK_ITEMS], rows[start : start + BLOCK_ITEMS]
            if not self._likely_absent(block):
                copy_items(words, block, stride, target)
            elif self.span_bytes > WINDOW_BYTES:
                self._take_large(block, target)
            else:
                for chosen in self._windows(block):
                    copy_ordered_items(words, block, stride, chosen, target)

    def _word(self, out: npt.NDArray[Any]) -> type[np.generic]:
        sizes = self.stride_bytes | self.span_bytes | self._payload.nbytes | out.ctypes.data
        return next(word for word in _WORDS if sizes % np.dtype(word).itemsize == 0)

    def _likely_absent(self, ids: _Ids) -> bool:
        if not self._probed:
            return True
        probes = min(max(ids.size // 64, 8), MOST_PROBES, ids.size)
        base = self.mapping.address + self._offset
        absent = 0
        for place in np.linspace(0, ids.size - 1, probes).astype(np.int64):
            absent += not resident_pages(base + int(ids[place]) * self.stride_bytes, 1)[0]
        return absent > probes * ABSENT_SHARE

    def _windows(self, ids: _Ids) -> Iterator[_Ids]:
        """Yield which items to copy next, when the pages of the window after are asked for."""
        pages = self.span_bytes // PAGE_BYTES + 1
        size = min(max(WINDOW_BYTES // (pages * PAGE_BYTES), 1), WINDOW_ITEMS)
        order = np.argsort(ids).astype(np.int64, copy=False)
        self._ask(ids, order[:size])
        for start in range(0, ids.size, size):
            self._ask(ids, order[start + size : start + 2 * size])
            yield order[start : start + size]

    def _ask(self, ids: _Ids, chosen: _Ids) -> None:
        if chosen.size == 0:
            return
        firsts, counts = np.empty((2, chosen.size), dtype=np.int64)
        layout = (self._offset, self.stride_bytes, self.span_bytes, PAGE_BYTES)
        found = page_ranges(ids, chosen, layout, firsts, counts)
        self._fetcher.request(firsts[:found], counts[:found])

    def _take_large(self, ids: _Ids, out: npt.NDArray[Any]) -> None:
        """Copy items that exceed a window on their own, piece by piece."""
        rows = out.view(np.uint8).reshape(ids.size, -1)
        for i, item in enumerate(ids.tolist()):
            start = item * self.stride_bytes
            for low in range(0, self.span_bytes, WINDOW_BYTES):
                high = min(low + WINDOW_BYTES, self.span_bytes)
                first = (self._offset + start + low) // PAGE_BYTES
                last = (self._offset + start + high - 1) // PAGE_BYTES
                self._fetcher.request(np.array([first]), np.array([last + 1 - first]))
                rows[i, low:high] = self._payload[start + low : start + high]


def shows_residency(path: Path) -> bool:
    """Whether the kernel tells this process which pages of a file are present.

    To others than its owner and those who may write it, mincore calls every page present, and a
    cold file would be read page by page, unasked.
    """
    user = os.geteuid()
    try:
        owner = path.stat().st_uid
    except OSError as error:
        raise StaleFileError(
            f"cannot find the file: {error.strerror}", path=str(path), errno=error.errno
        ) from error
    return user in (0, owner) or os.access(path, os.W_OK)
