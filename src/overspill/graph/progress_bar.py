"""Progress as people and programs ask for it: a bar, a callable that gets events, or nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import TqdmWarning

with warnings.catch_warnings():
    # In a notebook without ipywidgets it falls back to text, and need not say so.
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

Event = dict[str, Any]


@contextmanager
def event_listener(
    progress: bool | Callable[[Event], None] | None,
) -> Iterator[Callable[[Event], None]]:
    """What events are sent to, for the span.

    Args:
        progress: True shows a bar for each phase on stderr; a callable gets the events itself.

    Yields:
        A callable that takes an event.
    """
    if callable(progress):
        yield progress
        return
    bar = _Bar()
    try:
        yield bar.follow if progress else _ignore
    finally:
        bar.close()


class _Bar:
    """A bar for the phase under way."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._bar: Any = None

    def follow(self, event: Event) -> None:
        if event.get("event", "progress") != "progress":
            return
        # A phase that begins once more starts a new bar too.
        if event["phase"] != self._phase or event["done"] < self._bar.n:
            self.close()
            self._phase = event["phase"]
            self._bar = tqdm(
                total=event["total"],
                desc=event["phase"],
                unit=event["unit"],
                unit_scale=True,
                unit_divisor=1024 if event["unit"] == "B" else 1000,
            )
        self._bar.update(event["done"] - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _ignore(_event: Event) -> None:
    """Nobody asked."""
