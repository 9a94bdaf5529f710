"""The raw ids of a node type whose ids are text: their hashes, and reads of some of them.

Bottleneck: the device's random reads. The strings lie in two array files, offsets and bytes, in
the order of their hashes, so that those that are wanted lie anywhere. Algorithm: what is wanted is
taken in order of place, a block at a time; the pages of a block that are absent are asked for
together before they are touched, as page by page they would come at a tenth of the speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.errors import FormatError
from overspill.kernels.strings import copy_strings, hash_strings, match_strings
from overspill.linux.fetch import PAGE_BYTES, PageFetcher
from overspill.linux.pages import advise, resident_pages
from overspill.storage.arrays import check_unchanged, map_array
from overspill.storage.records import FileRecord

Ids = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_BLOCK_STRINGS = 4096
_BLOCK_BYTES = 16 << 20
_PROBES = 64


def text_hashes(offsets: Ids, data: Bytes, *, salt: int) -> Ids:
    """The keyed 64-bit hashes of strings, int64 (n,): what stands for them in `ids`.

    Args:
        offsets: int64 (n + 1,), where each begins in `data`, and the end of the last.
        data: uint8, UTF-8.
        salt: The key, 0 or more.
    """
    hashes = np.empty(len(offsets) - 1, np.int64)
    hash_strings(offsets, data, salt, hashes)
    return hashes


class StoredTexts:
    """Reads the strings of some nodes. Threads may read at the same time; it does not pickle.

    Args:
        directory: The dataset.
        files: "offsets" and "data", as the manifest has them.
        probed: Whether the kernel tells this process which of their pages are present.

    Raises:
        StaleFileError: A file is not the one that the manifest describes.
        MappingError: The system refused to map one.
    """

    def __init__(
        self, directory: Path, files: Mapping[str, FileRecord], *, probed: bool = True
    ) -> None:
        self._offsets = _RandomFile(directory / files["offsets"].path, files["offsets"], probed)
        self._data = _RandomFile(directory / files["data"].path, files["data"], probed)

    def spans(self, places: Ids) -> tuple[Ids, Ids]:
        """Where some strings begin, and their lengths; 40 bytes of memory each.

        Raises:
            FormatError: The offsets are damaged.
            StaleFileError: A file was cut, replaced or removed since it was mapped.
        """
        self._offsets.check_unchanged()
        self._data.check_unchanged()
        starts, ends = np.empty((2, len(places)), np.int64)
        held = self._offsets.payload
        for block in self._offsets.blocks(places * 8, 16, len(places)):
            starts[block], ends[block] = held[places[block]], held[places[block] + 1]
        if len(places) and (
            starts.min() < 0 or ends.max() > len(self._data.payload) or (ends < starts).any()
        ):
            raise FormatError(
                "the offsets of text ids are damaged",
                path=self._offsets.path,
                remedy="build the dataset again, or copy it anew from where it is whole",
            )
        return starts, ends - starts

    def read(self, starts: Ids, lengths: Ids) -> Bytes:
        """The bytes of strings one after another: a copy, as large as they are together."""
        out = np.empty(int(lengths.sum()), np.uint8)
        ends = np.cumsum(lengths)
        order = np.arange(len(starts))
        for first, last in _cuts(ends):
            block = order[first:last]
            self._data.ask(starts[block], lengths[block])
            begin = int(ends[first] - lengths[first])
            copy_strings(self._data.payload, (starts, lengths), block, out[begin:])
        return out

    def equal(self, places: Ids, spans: tuple[Ids, Ids], data: Bytes) -> npt.NDArray[np.bool_]:
        """Whether strings are those that are stored at some places, one by one.

        Nothing is copied; 80 bytes of memory each.

        Args:
            places: int64 (n,), within the stored ones.
            spans: Where each of the strings to compare begins in `data`, and its length.
            data: Their bytes.
        """
        same = np.zeros(len(places), np.bool_)
        starts, lengths = self.spans(places)
        # Of another length is another string: its bytes need not be read.
        likely = np.flatnonzero(lengths == spans[1])
        order = likely[np.argsort(starts[likely])]
        for first, last in _cuts(np.cumsum(lengths[order])):
            block = order[first:last]
            self._data.ask(starts[block], lengths[block])
            theirs = starts[block], lengths[block], self._data.payload
            match_strings((*spans, data), theirs, block, same)
        return same


class _RandomFile:
    """An array file of one dimension, mapped for random reads."""

    def __init__(self, path: Path, record: FileRecord, probed: bool) -> None:
        self.path = str(path)
        self._mapping, self.payload = map_array(path, record)
        self._offset = self._mapping.nbytes - self.payload.nbytes
        self._probed = probed
        advise(self._mapping.address, self._mapping.nbytes, "random")
        self._fetcher = PageFetcher(self._mapping)

    def check_unchanged(self) -> None:
        """Refuse to go on over another file: a page past the end of one ends the process."""
        check_unchanged(self._mapping)

    def blocks(self, starts: Ids, nbytes: int, count: int) -> Iterator[Ids]:
        """Yield which items to touch next, in order, once the pages of the block after are asked.

        Args:
            starts: Where each item begins in the payload, in bytes.
            nbytes: Bytes of an item.
            count: How many there are.
        """
        order = np.argsort(starts)
        lengths = np.full(min(count, _BLOCK_STRINGS), nbytes)
        for first in range(-_BLOCK_STRINGS, count, _BLOCK_STRINGS):
            ahead = order[first + _BLOCK_STRINGS : first + 2 * _BLOCK_STRINGS]
            self.ask(starts[ahead], lengths[: len(ahead)])
            if first >= 0:
                yield order[first : first + _BLOCK_STRINGS]

    def ask(self, starts: Ids, lengths: Ids) -> None:
        """Ask for the pages of some spans, best in order, unless they seem to be there."""
        held = lengths > 0
        if not held.any():
            return
        begins = starts[held] + self._offset
        firsts = begins // PAGE_BYTES
        lasts = (begins + lengths[held] - 1) // PAGE_BYTES + 1
        if self._probed and not self._likely_absent(firsts):
            return
        order = np.argsort(firsts, kind="stable")
        firsts, lasts = firsts[order], np.maximum.accumulate(lasts[order])
        new = np.flatnonzero(firsts[1:] > lasts[:-1]) + 1
        begin, end = firsts[np.r_[0, new]], lasts[np.r_[new, len(lasts)] - 1]
        self._fetcher.request(begin, end - begin)

    def _likely_absent(self, pages: Ids) -> bool:
        some = pages[:: max(1, len(pages) // _PROBES)].tolist()
        return any(
            not resident_pages(self._mapping.address + page * PAGE_BYTES, 1)[0] for page in some
        )


def _cuts(ends: Ids) -> Iterator[tuple[int, int]]:
    """Cut items, whose bytes add up to `ends`, into blocks of bounded count and bytes."""
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, before + _BLOCK_BYTES, "right"))
        last = min(max(last, first + 1), first + _BLOCK_STRINGS)
        yield first, min(last, len(ends))
        first = last


def joined(strings: list[str]) -> tuple[Ids, Bytes]:
    """Python strings as offsets and UTF-8; bytes that were no UTF-8 are kept as they were.

    Raises:
        UnicodeEncodeError: One holds a surrogate, which stands for no character.
    """
    held = [text.encode("utf-8", "surrogateescape") for text in strings]
    offsets = np.zeros(len(held) + 1, np.int64)
    np.cumsum([len(text) for text in held], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(held), np.uint8)


def split(lengths: Ids, data: Bytes) -> list[str]:
    """The inverse of `joined`, of lengths instead of offsets."""
    held, texts, at = data.tobytes(), [], 0
    for length in lengths.tolist():
        texts.append(held[at : at + length].decode("utf-8", "surrogateescape"))
        at += length
    return texts
