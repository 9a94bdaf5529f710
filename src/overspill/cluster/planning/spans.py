"""How long a stage takes, between two ends: everything overlaps, and nothing does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Span:
    """Seconds that a stage asks of each thing that it uses, on the machine that has the most to do.

    Attributes:
        stage: What it is called.
        disk: Of the disk.
        network: Of the network, the fuller direction.
        processor: Of the processors, all of them at work.
        waiting: For answers that nothing else fills.
    """

    stage: str
    disk: float = 0.0
    network: float = 0.0
    processor: float = 0.0
    waiting: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by what they are spent on."""
        return {name: value for name, value in asdict(self).items() if name != "stage"}

    @property
    def least(self) -> float:
        """Where everything overlaps: the longest of them."""
        return max(self.parts.values())

    @property
    def most(self) -> float:
        """Where nothing does: their sum."""
        return sum(self.parts.values())

    @property
    def bottleneck(self) -> str:
        """What it spends the most on."""
        return max(self.parts, key=lambda name: self.parts[name])

    def times(self, count: float) -> Span:
        """The same so many times."""
        return Span(stage=self.stage, **{name: count * value for name, value in self.parts.items()})

    def to_json(self) -> dict[str, Any]:
        """Every figure by name, with both ends."""
        ends = {"least_seconds": self.least, "most_seconds": self.most}
        each = {f"{name}_seconds": value for name, value in self.parts.items()}
        return {"stage": self.stage, **ends, **each, "bottleneck": self.bottleneck}
