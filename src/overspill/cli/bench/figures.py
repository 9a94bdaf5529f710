"""What was measured, round by round, and the ratios that follow from it; pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["B", "reads", "rows", "edges", "messages"]
# What each round found: a rate a second by name.
Rounds = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Kind:
    """What a rate is, and what it is held against.

    Attributes:
        name: Its name in JSON.
        shown: Its name in the table.
        unit: What it counts.
        limit: The limit that it cannot pass; None: it is one.
        poor_below: A smaller share of the limit calls for advice.
        about: What is done, for people.
        derived: Whether it follows from other limits.
    """

    name: str
    shown: str
    unit: Unit
    about: str
    limit: str | None = None
    poor_below: float = 0.0
    derived: bool = False

    @property
    def measured(self) -> bool:
        """Whether it is a limit that was itself measured."""
        return self.limit is None and not self.derived


LIMITS = (
    Kind("sequential_write", "write", "B", "direct, in order, four in flight, then synced"),
    Kind("sequential_read", "read", "B", "direct, in order, four in flight"),
    Kind("random_reads", "random reads", "reads", "4 KiB each, direct, 256 in flight"),
    Kind("round_trips", "round trips", "messages", "a message to a process and its answer"),
    Kind(
        "build_traffic",
        "build traffic",
        "edges",
        "what a build must read and write, in order",
        derived=True,
    ),
)
MEASURES = (
    Kind(
        "spill",
        "spill",
        "B",
        "a tensor from memory to a tensor over a file, synced",
        "sequential_write",
        0.5,
    ),
    Kind("mapped_read", "map", "B", "a mapped tensor read in order, cold", "sequential_read", 0.2),
    Kind(
        "gather",
        "gather",
        "rows",
        "rows of 512 bytes at random, each on a page of its own, cold",
        "random_reads",
        0.6,
    ),
    Kind(
        "hand_over",
        "hand over",
        "messages",
        "a tensor to a spawned process, which maps it and reads one element",
        "round_trips",
        0.02,
    ),
    Kind(
        "build",
        "build",
        "edges",
        "a graph from a cold edge file, without the start of its process",
        "build_traffic",
        0.05,
    ),
)


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of the rounds."""

    median: float
    low: float
    high: float

    @property
    def unsteadiness(self) -> float:
        """The largest over the smallest."""
        return self.high / self.low if self.low else float("inf")


@dataclass(frozen=True)
class Figure:
    """A rate, and its share of the limit that was measured in the same rounds.

    Attributes:
        kind: What it is.
        per_second: The rate.
        ratio: Its share of the limit; None: it is a limit.
    """

    kind: Kind
    per_second: Spread
    ratio: Spread | None = None

    @property
    def is_poor(self) -> bool:
        """Whether the share is smaller than a healthy machine's."""
        return self.ratio is not None and self.ratio.median < self.kind.poor_below


def summarised(rounds: Rounds) -> dict[str, Figure]:
    """Turn rounds into figures by name, limits first; what no round measured is left out.

    A ratio is that of one round's rates, and its median that of these ratios: where the disk's
    speed changes from round to round, the share stays.
    """
    found: dict[str, Figure] = {}
    for kind in (*LIMITS, *MEASURES):
        held = [one for one in rounds if kind.name in one]
        if not held:
            continue
        ratio = None
        if kind.limit is not None:
            ratio = spread([one[kind.name] / one[kind.limit] for one in held])
        found[kind.name] = Figure(kind, spread([one[kind.name] for one in held]), ratio)
    return found


def build_traffic(
    edges: int, nodes: int, *, read_bytes_per_second: float, write_bytes_per_second: float
) -> float:
    """Edges a second that sequential I/O alone would allow a build.

    The input (16 bytes an edge) and what is set aside (8) are read, what is set aside and the rows
    (4 an edge, 8 a node) are written.
    """
    read, written = 24 * edges, 12 * edges + 8 * (nodes + 1)
    return edges / (read / read_bytes_per_second + written / write_bytes_per_second)


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))
