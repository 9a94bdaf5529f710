"""Whether a tensor goes to a file of the run: a request and what was measured in, a home out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from overspill.units import format_bytes

Home = Literal["memory", "shm", "disk", "none"]

# The large figure is the field's; the fraction makes small containers work.
LARGEST_DEFAULT_THRESHOLD_BYTES = 2 << 30
DEFAULT_THRESHOLD_SHARE = 16


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be placed.

    Attributes:
        nbytes: Its size, contiguous.
        obstacle: Why no file can hold it ("a quantized dtype"), or None.
    """

    nbytes: int
    obstacle: str | None = None


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """What was measured and set at the moment of the question.

    Attributes:
        memory_bytes: Memory that can still be had, or None where it cannot be measured.
        spill_dir: The spill directory in force, or None.
        min_bytes: The threshold in force, or None for the default.
    """

    memory_bytes: int | None
    spill_dir: str | None
    min_bytes: int | None = None

    @property
    def threshold_bytes(self) -> int:
        """The size from which a tensor is worth a file."""
        if self.min_bytes is not None:
            return self.min_bytes
        if self.memory_bytes is None:
            return LARGEST_DEFAULT_THRESHOLD_BYTES
        share = max(0, self.memory_bytes) // DEFAULT_THRESHOLD_SHARE
        return min(LARGEST_DEFAULT_THRESHOLD_BYTES, share)


@dataclass(frozen=True)
class Placement:
    """Where something should live, and why.

    Attributes:
        home: "memory", "shm", "disk"; "none" where no home is safe.
        reason: One sentence for people, with the numbers that decided.
    """

    home: Home
    reason: str


def place_in_file(request: Request, headroom: Headroom) -> Placement:
    """Decide between a file of the run and leaving the bytes where they are.

    Args:
        request: What is to be placed.
        headroom: What was measured and set.

    Returns:
        "disk", or "memory" with the first reason that stands against a file.
    """
    size = format_bytes(request.nbytes)
    if headroom.spill_dir is None:
        return Placement("memory", "spilling is off: no spill directory is set")
    if request.obstacle is not None:
        return Placement("memory", f"{request.obstacle} cannot live in a mapped file")
    if request.nbytes == 0:
        return Placement("memory", "there are no bytes to place")
    threshold = headroom.threshold_bytes
    if request.nbytes < threshold:
        return Placement(
            "memory", f"{size} is below the spill threshold of {format_bytes(threshold)}"
        )
    return Placement("disk", f"{size} reaches the spill threshold of {format_bytes(threshold)}")
