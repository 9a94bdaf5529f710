"""Random reads from one array file: copy what is present, ask for the rest, then read it safely.

Bottleneck: the device's random reads; where everything is present, cache and TLB misses. Algorithm:
items whose pages are known to be in memory are copied by a plain loop, in the order asked for. The
others are sorted, their distinct pages cut into windows, and each window asked for by a thread that
runs a few windows ahead, so that the device's queue stays full while pages that have come are read
and copied. Touched unasked, each absent page would cost a synchronous read: 22k rows a second
instead of 81k, and 90 inside a small memory cgroup with read-ahead left on. Asked for needlessly, a
present page costs ten times the copy, hence what is known of them (`PresenceMap`). Pages of a file
that the cache cannot hold, and whose pages are not found there again, are read past it
(`DirectPages`): they would drive out others, at five times the processor (`CacheUse` decides).
Pages that nobody asked for are read only by a reader that was told of reuse (`expect_reuse`).

Safety: a page that is not known to be present is never touched but read by `SafeReader`, where a
disk's error or a cut file is an exception. What is left: a page that goes between the look at it
and the copy, two seconds, or up to ten where some GiB of the file are present (`PresenceMap`), ends
the process by SIGBUS if the file was cut under it, or if the disk then refuses it;
`check_unchanged` before each batch narrows the first.

Limits: the order of a block of 2**20 items is held in memory, 32 to 40 MiB; larger requests go
by blocks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.graph.cache_use import CacheUse
from overspill.kernels.gather import copy_fetched, copy_present, next_window
from overspill.kernels.words import widest_word
from overspill.linux.direct_pages import WINDOW_PAGES, DirectPages
from overspill.linux.fetch import PAGE_BYTES, REQUEST_BYTES, PageFetcher
from overspill.linux.pages import advise
from overspill.linux.presence import MOST_PROBES, PresenceMap, note_read
from overspill.linux.residency import shows_residency
from overspill.linux.safe_read import SafeReader
from overspill.storage.arrays import check_unchanged, map_array
from overspill.storage.records import FileRecord

WINDOW_BYTES = 8 << 20
BLOCK_ITEMS = 1 << 20
# A thread costs about 100 us to start: what it copies must be worth that.
SHARE_BYTES = 1 << 20
_LINE_BYTES = 64
_PAGE_SHIFT = PAGE_BYTES.bit_length() - 1
_Ids = npt.NDArray[np.int64]
_Rows = npt.NDArray[Any]
_NONE: _Ids = np.empty(0, dtype=np.int64)
_ALL_PRESENT = np.empty(0, dtype=np.uint8)
_ASKED_PAGES = REQUEST_BYTES // PAGE_BYTES


@dataclass(frozen=True)
class _Window:
    """Consecutive items of a sorted request, and the page ranges they lie on."""

    start: int
    stop: int
    firsts: _Ids
    counts: _Ids


class PagedArray:
    """An array file read at random through a mapping of its own, advised RANDOM.

    Item ``i`` is the ``span_bytes`` bytes from ``i * stride_bytes`` on. Threads may read at the
    same time, and a forked child may go on; it does not pickle. It starts threads within calls
    only: none is alive when somebody forks between calls.

    Args:
        path: The array file.
        record: What the manifest says of it.
        stride_bytes: From one item to the next.
        span_bytes: Bytes of an item, at most twice the stride.

    Attributes:
        mapping: The file.
        payload_offset: Bytes of it before the first item.
        pages_asked: Pages that were asked for so far, those that had come meanwhile included;
            approximate where threads read at the same time.

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
        self.pages_asked = 0
        self._reused = False
        self._payload = payload.reshape(-1).view(np.uint8)
        self.payload_offset = self.mapping.nbytes - self._payload.nbytes
        self._layout = (self.payload_offset, stride_bytes, span_bytes, _PAGE_SHIFT)
        self._fetcher = PageFetcher(self.mapping)
        self._reader = SafeReader(self.mapping)
        self._direct = DirectPages(self.mapping, self._reader)
        shown = shows_residency(path)
        self._presence = PresenceMap(self.mapping, shown=shown)
        # Where what is in the cache is hidden, it cannot be told whether it pays.
        self._cache = CacheUse(self.mapping.nbytes, None if shown else _unknown)

    @property
    def path(self) -> str:
        """The file's path."""
        return self.mapping.path

    def elements(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The payload as a flat array; a page that is absent is read alone as it is touched."""
        return self._payload.view(dtype)

    def check_unchanged(self) -> None:
        """Refuse to go on over a file that was cut, replaced or removed: one system call.

        Raises:
            StaleFileError: It is not the file that was mapped any more.
        """
        check_unchanged(self.mapping)

    def take(
        self,
        ids: _Ids,
        out: npt.NDArray[Any],
        *,
        places: _Ids | None = None,
        threads: int = 1,
    ) -> None:
        """Copy items. The ids must be within the array, the places within `out`.

        Costs the copy, and 8 bytes of memory an item of a block, when the pages are cached.
        Otherwise, at its peak, 32 bytes an item of a block (40 where what was known of the pages
        proves old), or 16 and 8 MiB where that is more; 24 MiB of page cache in flight; about 1 us
        an item on top of what the device takes. A look at all pages takes 3 MiB meanwhile, and what
        it finds is kept: 32 KiB a GiB of file.

        Args:
            ids: int64 (items,), contiguous; repeats are fine.
            out: Contiguous, rows of `span_bytes` bytes: one an item, or more with `places`.
            places: int64 (items,), contiguous: the row of `out` that each item goes to; None: in
                order.
            threads: How many copy at a time, at most, what is present.

        Raises:
            StaleFileError: The file was cut, replaced or removed.
            MappingError: The disk refused to read a page.
        """
        if ids.size == 0 or self.span_bytes == 0:
            return
        rows = self._as_rows(out)
        for start in range(0, ids.size, BLOCK_ITEMS):
            stop = min(start + BLOCK_ITEMS, ids.size)
            if places is None:
                self._take_block(ids[start:stop], _NONE, rows[start:stop], threads)
            else:
                self._take_block(ids[start:stop], places[start:stop], rows, threads)

    def present_share(self, ids: _Ids) -> float:
        """Which share of items is in memory, by a look at some of them; 0 where that is hidden."""
        return float(self._seen(ids).mean()) if ids.size and self.span_bytes else 0.0

    def fits_cache(self) -> bool:
        """Whether the page cache could hold the whole file beside others: then it should."""
        return self._cache.fits()

    def expect_reuse(self) -> None:
        """Be told that rows will be read again and again, as epochs do, whichever they are.

        A file that the page cache holds easily is then read whole, once a quarter of it was read at
        random. Otherwise the distinct pages of what is asked for are all that is ever read.
        """
        self._reused = True

    def _as_rows(self, out: npt.NDArray[Any]) -> _Rows:
        sizes = self.stride_bytes | self.span_bytes | self._payload.nbytes | out.ctypes.data
        word = widest_word(sizes)
        return out.reshape(-1).view(word).reshape(-1, self.span_bytes // word.itemsize)

    def _take_block(self, ids: _Ids, places: _Ids, rows: _Rows, threads: int) -> None:
        asked = ids.size
        ids, places, share = self._copy_present(ids, places, rows, threads)
        self._cache.note(asked, asked - ids.size * (1 - share))
        if not ids.size:
            return
        # One array after the other: what was not needed any more would be the largest part.
        order = np.argsort(ids)
        ids = ids[order]
        places = places[order] if places.size else order
        del order
        self._fetch(ids, places, rows)

    def _copy_present(
        self, ids: _Ids, places: _Ids, rows: _Rows, threads: int
    ) -> tuple[_Ids, _Ids, float]:
        """Copy what is known to be present, or found to be.

        Returns:
            The other items, their places, and which share of them is present all the same.
        """
        known = self._presence.known()
        if known is not None:
            ids, places = self._copy(known, ids, places, rows, threads)
        if not ids.size:
            return ids, places, 0.0
        present = self._seen(ids)
        if present.size == ids.size:
            places = places if places.size else np.arange(ids.size)
            self._copy(_ALL_PRESENT, ids[present], places[present], rows, threads)
            return ids[~present], places[~present], 0.0
        share = float(present.mean())
        if self._presence.is_worth_a_look(share, ids.size):
            return *self._copy(self._presence.look(), ids, places, rows, threads), 0.0
        return ids, places, share

    def _copy(
        self, known: npt.NDArray[np.uint8], ids: _Ids, places: _Ids, rows: _Rows, threads: int
    ) -> tuple[_Ids, _Ids]:
        """Copy the items whose pages are known to be present; the others, and their places."""
        left = self._copied(known, ids, places, rows, threads)
        ids = ids[left]
        return ids, places[left] if places.size else left

    def _copied(
        self, known: npt.NDArray[np.uint8], ids: _Ids, places: _Ids, rows: _Rows, threads: int
    ) -> _Ids:
        """Copy the items whose pages are known to be present; the positions of the others."""
        words = self._payload.view(rows.dtype)
        missed = np.empty(ids.size, dtype=np.int64)

        def copy(start: int, stop: int) -> int:
            mine = places[start:stop]
            target = rows if places.size else rows[start:stop]
            out = missed[start:stop]
            wanted = (ids[start:stop], mine)
            found = copy_present(words, wanted, self._layout, known, target, out)
            out[:found] += start
            return found

        work = ids.size * (self.span_bytes + _LINE_BYTES)
        shares = max(1, min(threads, work // SHARE_BYTES))
        cuts = [ids.size * share // shares for share in range(shares + 1)]
        if shares == 1:
            return missed[: copy(0, ids.size)]
        # The pool ends with the copy: no thread of it is alive when somebody forks.
        with ThreadPoolExecutor(shares - 1, thread_name_prefix="overspill-copy") as pool:
            others = [pool.submit(copy, *cut) for cut in itertools.pairwise(cuts[1:])]
            found = [copy(0, cuts[1]), *(other.result() for other in others)]
        end = 0
        for start, count in zip(cuts[:-1], found, strict=True):
            missed[end : end + count] = missed[start : start + count]
            end += count
        return missed[:end]

    def _seen(self, ids: _Ids) -> npt.NDArray[np.bool_]:
        """Whether items are present: of each where they are few, else of some of them."""
        if ids.size > MOST_PROBES:
            ids = ids[np.linspace(0, ids.size - 1, MOST_PROBES).astype(np.int64)]
        starts = self.payload_offset + ids * self.stride_bytes
        return self._presence.spans_present(starts, self.span_bytes)

    def _fetch(self, ids: _Ids, places: _Ids, rows: _Rows) -> None:
        """Read sorted items whose pages may be absent, and copy them from what was read."""
        if self.span_bytes > WINDOW_BYTES:
            self._fetch_large(ids, places, rows)
            return
        pages = self.span_bytes // PAGE_BYTES + 2
        if pages <= WINDOW_PAGES and self._cache.passes_by() and self._direct.is_possible():
            self._fetch_past_cache(ids, places, rows)
            return
        if self._reused and self._cache.wants_whole():
            self._ask_for_all()
        room = max(min(WINDOW_BYTES // PAGE_BYTES, ids.size * pages), pages)
        memory = np.empty(room * PAGE_BYTES, dtype=np.uint8)
        with closing(self._asked(self._windows(ids, WINDOW_BYTES // PAGE_BYTES))) as windows:
            for window in windows:
                ranges = window.firsts, window.counts
                self._reader.read(*ranges, memory)
                wanted = ids[window.start : window.stop], places[window.start : window.stop]
                copy_fetched(memory.view(rows.dtype), wanted, self._layout, ranges, rows)
        # A cut within a page leaves zeros in it, and no error.
        self.check_unchanged()

    def _fetch_past_cache(self, ids: _Ids, places: _Ids, rows: _Rows) -> None:
        """The same, of items whose pages are not worth keeping."""
        waiting: deque[_Window] = deque()

        def ranges() -> Iterator[tuple[_Ids, _Ids]]:
            for window in self._windows(ids, WINDOW_PAGES):
                waiting.append(window)
                yield window.firsts, window.counts

        with closing(self._direct.read(ranges())) as read:
            for memory in read:
                window = waiting.popleft()
                self._note_read(window)
                wanted = ids[window.start : window.stop], places[window.start : window.stop]
                found = window.firsts, window.counts
                copy_fetched(memory.view(rows.dtype), wanted, self._layout, found, rows)
        self.check_unchanged()

    def _ask_for_all(self) -> None:
        """Bring the whole file into the page cache, in order."""
        pages = -(-self.mapping.nbytes // PAGE_BYTES)
        firsts = np.arange(0, pages, _ASKED_PAGES)
        counts = np.minimum(_ASKED_PAGES, pages - firsts)
        self._fetcher.request(firsts, counts)
        note_read(pages)

    def _windows(self, ids: _Ids, most: int) -> Iterator[_Window]:
        """Cut sorted items into windows of at most some pages, but one item at least."""
        start, most = 0, max(1, most)
        while start < ids.size:
            firsts, counts = np.empty((2, most), dtype=np.int64)
            stop, found = next_window(ids, start, self._layout, most, (firsts, counts))
            yield _Window(start, stop, firsts[:found], counts[:found])
            start = stop

    def _asked(self, windows: Iterator[_Window]) -> Generator[_Window]:
        """Yield windows that were asked for, while a thread asks for the ones after them."""
        first, second = next(windows), next(windows, None)
        if second is None:
            self._request(first)
            yield first
            return
        waiting: deque[tuple[_Window, Future[None]]] = deque()
        with ThreadPoolExecutor(1, thread_name_prefix="overspill-ask") as pool:
            for window in (first, second):
                waiting.append((window, pool.submit(self._request, window)))
            while waiting:
                window, asked = waiting.popleft()
                following = next(windows, None)
                if following is not None:
                    waiting.append((following, pool.submit(self._request, following)))
                asked.result()
                yield window

    def _request(self, window: _Window) -> None:
        self._fetcher.request(window.firsts, window.counts)
        note_read(int(window.counts.sum()))
        self._note_read(window)

    def _note_read(self, window: _Window) -> None:
        pages = int(window.counts.sum())
        self._cache.note_read(pages * PAGE_BYTES)
        self.pages_asked += pages

    def _fetch_large(self, ids: _Ids, places: _Ids, rows: _Rows) -> None:
        """Read items that exceed a window on their own, piece by piece."""
        memory = np.empty(WINDOW_BYTES + 2 * PAGE_BYTES, dtype=np.uint8)
        out = rows.view(np.uint8)
        for item, place in zip(ids.tolist(), places.tolist(), strict=True):
            start = self.payload_offset + item * self.stride_bytes
            for low in range(0, self.span_bytes, WINDOW_BYTES):
                high = min(low + WINDOW_BYTES, self.span_bytes)
                first = (start + low) // PAGE_BYTES
                count = (start + high - 1) // PAGE_BYTES + 1 - first
                window = _Window(0, 1, np.array([first]), np.array([count]))
                self._request(window)
                self._reader.read(window.firsts, window.counts, memory)
                skip = start + low - first * PAGE_BYTES
                out[place, low:high] = memory[skip : skip + high - low]
        self.check_unchanged()


def _unknown() -> None:
    """The room of a cache that cannot be seen."""
