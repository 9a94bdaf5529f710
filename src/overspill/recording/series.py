"""Rows of a recording in a fixed amount of memory, however long it runs.

Bottleneck: a job of days has millions of samples, and what matters in them is short: the moment at
which memory was fullest. Algorithm: a stored row stands for a number of samples, the same for all.
When the room is full, neighbours merge in pairs and each row stands for twice as many. Of those
merged, the levels are those of the sample that held the most, whole, so that its kinds still add
up; the counters are the last one's, so that differences stay true means. Limits: time is known to
one row's samples, between 1/512 and 1/1024 of the whole at the default capacity; what a kind other
than the fullest moment's came to is not to be found here (`Peaks` keeps it).
"""

from __future__ import annotations

import numpy as np

from overspill.recording.fields import FIELDS, LEVELS, Rows, held


class Series:
    """Samples in time order. One thread at a time.

    Args:
        capacity: The most rows kept; even. Takes 150 bytes a row.
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._room = np.zeros((capacity, len(FIELDS)), np.int64)
        self._first = np.zeros((0, len(FIELDS)), np.int64)
        self._rows = 0  # begun, the one being filled included
        self._filled = 0  # samples in the one being filled
        self._stride = 1

    @property
    def samples_a_row(self) -> int:
        """How many samples a stored row stands for."""
        return self._stride

    def append(self, row: Rows) -> None:
        """Add a sample (fields,)."""
        if not len(self._first):
            self._first = row[None].copy()
        if self._rows and self._filled < self._stride:
            last = self._room[self._rows - 1 : self._rows]
            last[:] = _merged(last, row[None])
            self._filled += 1
            return
        if self._rows == len(self._room):
            self._halve()
        self._room[self._rows] = row
        self._rows += 1
        self._filled = 1

    def rows(self) -> Rows:
        """The first sample and all stored rows since, (rows, fields); a copy."""
        stored = self._room[: self._rows]
        # Until something merged, the first sample is the first row.
        return np.concatenate([self._first, stored[1:] if self._stride == 1 else stored])

    def _halve(self) -> None:
        kept = len(self._room) // 2
        self._room[:kept] = _merged(self._room[0::2], self._room[1::2])
        self._rows = kept
        self._stride *= 2


def _merged(earlier: Rows, later: Rows) -> Rows:
    out = later.copy()
    fuller = held(earlier) > held(later)
    out[fuller, : len(LEVELS)] = earlier[fuller, : len(LEVELS)]
    return out
