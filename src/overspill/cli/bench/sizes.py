"""How much is moved, so that the whole ends in its time on disks that are a hundred times apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

_MIB = 1 << 20
# Below these, what is measured is how a thing begins; a spill of less goes through the page cache.
_LEAST_WRITE_BYTES, _LEAST_READ_BYTES, _LEAST_EDGES = 32 * _MIB, 32 * _MIB, 200_000
_WRITE_SECONDS, _READ_SECONDS, _EDGES_SECONDS = 1.5, 4.0, 3.0
# What a build and its input move and hold at most: 16 of input, 8 set aside, the rest rows.
_MOVED_BYTES_AN_EDGE = 36
_HELD_BYTES_AN_EDGE = 40
EDGES_A_NODE = 10


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a run of the bench moves.

    Attributes:
        write_bytes: Of the file that is written, and of the tensor that is spilled.
        read_bytes: Of the file that is read in order and at random.
        edges: Of the graph that is built.
        random_seconds: How long each kind of random reading goes on.
        rounds: Rounds of all measurements, at most.
        most_seconds: No round is begun that would end later than this after the start.
    """

    write_bytes: int
    read_bytes: int
    edges: int
    random_seconds: float
    rounds: int
    most_seconds: float

    @property
    def nodes(self) -> int:
        """Nodes of the graph that is built."""
        return max(1, self.edges // EDGES_A_NODE)

    @property
    def disk_bytes(self) -> int:
        """The most that lies on the disk at one time."""
        return 3 * self.write_bytes + self.read_bytes + _HELD_BYTES_AN_EDGE * self.edges

    def fitted(self, *, write_bytes_per_second: float, available_bytes: int) -> Sizes:
        """The same or smaller, so that a slow disk and a small memory do.

        Args:
            write_bytes_per_second: What the disk takes.
            available_bytes: Memory that may be used; the tensor takes a quarter at most.
        """
        rate = write_bytes_per_second
        write = min(self.write_bytes, int(rate * _WRITE_SECONDS), available_bytes // 4)
        read = min(self.read_bytes, int(rate * _READ_SECONDS))
        edges = min(self.edges, int(rate * _EDGES_SECONDS) // _MOVED_BYTES_AN_EDGE)
        return replace(
            self,
            write_bytes=_whole(max(write, min(_LEAST_WRITE_BYTES, self.write_bytes))),
            read_bytes=_whole(max(read, min(_LEAST_READ_BYTES, self.read_bytes))),
            edges=max(edges, min(_LEAST_EDGES, self.edges)),
        )


FULL = Sizes(
    write_bytes=512 * _MIB,
    read_bytes=1024 * _MIB,
    edges=10_000_000,
    random_seconds=2.0,
    rounds=3,
    most_seconds=100.0,
)
QUICK = Sizes(
    write_bytes=128 * _MIB,
    read_bytes=256 * _MIB,
    edges=2_000_000,
    random_seconds=0.7,
    rounds=2,
    most_seconds=25.0,
)


def _whole(nbytes: int) -> int:
    return max(1, nbytes // _MIB) * _MIB
