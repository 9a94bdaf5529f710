"""Means of counters over even spans of time, for charts of what happens a second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overspill.recording.fields import Rows, column

Floats = npt.NDArray[np.float64]
_MOST_SPANS = 160
_LEAST_SPAN_NS = 250_000_000


@dataclass(frozen=True)
class Rates:
    """What a counter grew by a second.

    Attributes:
        edges_s: Where spans begin, and the end of the last: (spans + 1,).
        values: The mean of each, (spans,).
        total: What it grew by in all.
    """

    edges_s: Floats
    values: Floats
    total: float

    @property
    def span_s(self) -> float:
        """How long a span is."""
        return float(self.edges_s[1] - self.edges_s[0])

    @property
    def most(self) -> float:
        """The largest mean."""
        return float(self.values.max())


def rates(rows: Rows, name: str, *, interval_ns: int, most_spans: int = _MOST_SPANS) -> Rates:
    """Divide a recording evenly and take a counter's mean over each part.

    Args:
        rows: (rows, fields), at least one.
        name: The counter.
        interval_ns: Time between samples; a span has two of them at least.
        most_spans: The most parts; fewer smooth what comes in lumps.

    Returns:
        The means; between two samples growth is taken as even.
    """
    times = column(rows, "elapsed_ns").astype(np.float64)
    values = column(rows, name).astype(np.float64)
    whole = max(float(times[-1]), 1.0)
    shortest = max(_LEAST_SPAN_NS, 2 * interval_ns)
    spans = int(min(max(whole // shortest, 1), max(most_spans, 1)))
    edges = np.linspace(0, whole, spans + 1)
    at_edges = np.interp(edges, times, values, left=0.0)
    means = np.diff(at_edges) / np.diff(edges) * 1e9
    return Rates(edges / 1e9, np.maximum(means, 0), float(values[-1]))
