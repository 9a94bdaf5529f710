"""The kernels of text ids, compiled or loaded before a build plans its memory."""

from __future__ import annotations

import numpy as np

from overspill.build.ids.text_sort import StringSorter
from overspill.kernels.strings import gather_distinct, match_strings
from overspill.kernels.translate import rank_ids
from overspill.storage.texts import text_hashes


def warm_text_kernels() -> None:
    """Compile, or load from the cache, what storing, translating and finding strings will use.

    Offsets and bytes that cannot be written to, as Arrow's, are foreseen, each by itself too.
    """
    offsets, data = np.array([0, 1]), np.zeros(1, np.uint8)
    one = np.zeros(1, np.int64)
    for given in (offsets, _read_only(offsets)):
        for text in (data, _read_only(data)):
            text_hashes(given, text, salt=0)
    for text in (data, _read_only(data)):
        match_strings((one, one, text), (one, one, data), one, np.zeros(1, np.bool_))
    sorter = StringSorter(1)
    sorter.add(one, np.ones(1, np.int32), 0)
    found = sorter.sorted(data, 1)
    # A sort that falls back gives all bits of places.
    notes = np.zeros((1, 2), np.int64)
    order = np.zeros(1, np.uint64)
    gather_distinct(notes, order, -1, data, (found.hashes, found.lengths, found.data))
    rank_ids(one, one, one, one, 1, one.copy())


def _read_only(array: np.ndarray) -> np.ndarray:
    held = array.copy()
    held.flags.writeable = False
    return held
