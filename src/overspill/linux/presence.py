"""Which pages of a mapped file are in memory, known well enough to touch them without asking.

Bottleneck: mincore(2), which takes 2 ms a GiB of absent pages looked at whole, 16 to 24 ms a GiB of
present ones, and about 1.5 us a page looked at alone, no less than asking for a page that is there.
So the file is looked at whole, and a bit a page kept for a moment, but only once that costs less
than what was spent, since the last look, on pages that were there and not known to be; where most
pages are absent it never pays.

Limits: a page may go after it was looked at. What is known is dropped after two seconds; where a
look costs more than a twentieth of that, for files of which some GiB are present, after twenty
times what it costs, but after ten seconds at the latest. It is dropped too once this process has
read so much, of any file, that other pages may have had to go; of what other processes read,
nothing is known here. 32 KiB of memory a GiB of file.
"""

from __future__ import annotations

import errno
import os
import time

import numpy as np
import numpy.typing as npt

from overspill.errors import MappingError
from overspill.linux import libc
from overspill.linux.mapping import Mapping
from overspill.linux.pages import PAGE_BYTES, resident_pages

MOST_PROBES = 64
_PAGES_A_LOOK = 1 << 20
_PAGE_LOOK_S = 50e-9  # until the first look tells
# What an item costs more than a copy when it is asked for and was there.
_ITEM_WASTE_S = 1e-6
_LEAST_SHARE = 0.5
_LEAST_AGE_S, _MOST_AGE_S = 2.0, 10.0
_LOOKS_AN_AGE = 20
# Of the pages known to be present, as many may be read before they are looked at again.
_READ_SHARE = 1 / 64
_Bits = npt.NDArray[np.uint8]
_Ids = npt.NDArray[np.int64]


class _Reads:
    """Pages of any file that this process had read into the page cache."""

    def __init__(self) -> None:
        self.pages = 0


_reads = _Reads()


def note_read(pages: int) -> None:
    """Count pages that were read into the cache, which may have driven out those of any file."""
    _reads.pages += pages


class PresenceMap:
    """What is known of one mapping's pages. Threads may share it; it does not pickle.

    Args:
        mapping: The mapping.
        shown: Whether mincore tells this process the truth; if not, nothing is ever known.
    """

    def __init__(self, mapping: Mapping, *, shown: bool) -> None:
        self._mapping = mapping
        self._shown = shown
        self._pages = -(-mapping.nbytes // PAGE_BYTES)
        self._look_s = self._pages * _PAGE_LOOK_S
        self._bits: _Bits | None = None
        self._read_until = 0
        self._forget()

    def known(self) -> _Bits | None:
        """A bit a page, the lowest first, set where it was present when looked at; None: unknown.

        The array is not written to afterwards.
        """
        if self._bits is not None and (
            time.monotonic() > self._until or _reads.pages > self._read_until
        ):
            self._forget()
        return self._bits

    def spans_present(self, starts: _Ids, nbytes: int) -> npt.NDArray[np.bool_]:
        """Look at some spans of the file now, each by a system call; all absent where not shown.

        Args:
            starts: int64 (spans,), bytes from the file's start.
            nbytes: Bytes of a span, 1 or more.

        Returns:
            (spans,): whether all pages of each are present.

        Raises:
            MappingError: The kernel refused.
        """
        present = np.zeros(starts.size, dtype=np.bool_)
        if not self._shown:
            return present
        # One buffer for all, for `resident_pages` would take four times as long a span.
        found = np.zeros(nbytes // PAGE_BYTES + 2, dtype=np.uint8)
        buffer = found.ctypes.data
        begins = starts + self._mapping.address
        firsts = begins // PAGE_BYTES * PAGE_BYTES
        lengths = begins + nbytes - firsts
        counts = -(-lengths // PAGE_BYTES)
        each = zip(firsts.tolist(), lengths.tolist(), counts.tolist(), strict=True)
        for i, (first, length, count) in enumerate(each):
            try:
                libc.call("mincore", first, length, buffer)
            except OSError as error:
                if error.errno == errno.EAGAIN:  # it is a hint: out of memory, it tells nothing
                    continue
                raise _refused(error, self._mapping) from error
            present[i] = found[0] & 1 and (count == 1 or (found[:count] & 1).all())
        return present

    def is_worth_a_look(self, share: float, items: int) -> bool:
        """Whether to look at the file whole, rather than to ask for the pages of some items.

        Args:
            share: How many of them, by a sample, were present.
            items: How many they are; those that were present count towards the next look.
        """
        if share < _LEAST_SHARE:
            return False
        self._wasted_s += share * items * _ITEM_WASTE_S
        return self._wasted_s >= self._look_s

    def look(self) -> _Bits:
        """Look at all pages; known from now on. 2 to 24 ms a GiB of file, and 2 MiB of memory."""
        start = time.monotonic()
        bits = np.zeros(-(-self._pages // 8), dtype=np.uint8)
        present = 0
        for first in range(0, self._pages, _PAGES_A_LOOK):
            count = min(_PAGES_A_LOOK, self._pages - first)
            address = self._mapping.address + first * PAGE_BYTES
            found = self._resident(address, count)
            present += int(np.count_nonzero(found))
            packed = np.packbits(found, bitorder="little")
            bits[first // 8 : first // 8 + packed.size] = packed
        end = time.monotonic()
        self._look_s = end - start
        # From the start of the look, after which its first page may have gone.
        self._until = start + min(max(_LEAST_AGE_S, _LOOKS_AN_AGE * self._look_s), _MOST_AGE_S)
        self._read_until = _reads.pages + int(present * _READ_SHARE)
        self._wasted_s = 0.0
        self._bits = bits
        return bits

    def _resident(self, address: int, count: int) -> npt.NDArray[np.bool_]:
        try:
            return resident_pages(address, count * PAGE_BYTES)
        except MappingError as error:
            if error.errno != errno.EAGAIN:
                raise
            return np.zeros(count, dtype=np.bool_)

    def _forget(self) -> None:
        self._bits = None
        self._until, self._wasted_s = 0.0, 0.0


def _refused(error: OSError, mapping: Mapping) -> MappingError:
    number = error.errno or errno.EINVAL
    return MappingError(
        f"mincore failed: {os.strerror(number)}",
        path=mapping.path,
        errno=number,
        remedy="check the file and its file system",
    )
