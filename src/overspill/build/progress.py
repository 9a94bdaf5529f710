"""Progress as events: what a phase has done of its total, at most some times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
_INTERVAL_S = 0.1


class Progress:
    """Reports phases through a callable and keeps how long each took.

    Args:
        send: Receives ``{"event": "progress", "phase", "done", "total", "unit"}``.
    """

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send = send
        self._phase: str | None = None
        self._done = self._total = 0
        self._unit = ""
        self._started = self._told = 0.0
        self.seconds: dict[str, float] = {}

    def begin(self, phase: str, total: int, unit: str) -> None:
        """Start a phase, ending the one before; unit is "B" for bytes, else a plural noun."""
        self.end()
        self._phase, self._done, self._total, self._unit = phase, 0, total, unit
        self._started = time.monotonic()
        self._tell()

    def advance(self, amount: int) -> None:
        """Add to what is done."""
        self.reach(self._done + amount)

    def reach(self, done: int) -> None:
        """Say how much is done."""
        self._done = done
        if time.monotonic() - self._told >= _INTERVAL_S:
            self._tell()

    def end(self) -> None:
        """End the phase."""
        if self._phase is not None:
            took = time.monotonic() - self._started
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + took
            self._done = max(self._done, self._total)  # of a total that nobody knew
            self._tell()
            self._phase = None

    def _tell(self) -> None:
        self._told = time.monotonic()
        self._send(
            {
                "event": "progress",
                "phase": self._phase,
                "done": self._done,
                "total": self._total,
                "unit": self._unit,
            }
        )
