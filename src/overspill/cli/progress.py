"""Live bars for what takes time, one a phase, with rate and time left.

Bars go to standard error, so that standard output stays the result; where standard error is no
terminal, each phase prints one line when it ends.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from overspill.units import format_bytes


def format_count(value: float) -> str:
    """Write a count for people: 12,345 or 48.2M."""
    for factor, letter in ((1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.1f}{letter}"
    return f"{value:,.0f}"


def format_amount(value: float, unit: str) -> str:
    """Write an amount with its unit; bytes in powers of 1024."""
    return format_bytes(int(value)) if unit == "B" else f"{format_count(value)} {unit}"


def format_rate(value: float, unit: str) -> str:
    """Write a rate for people; slow ones with a decimal."""
    if unit != "B" and value < 100:
        return f"{value:.1f}/s"
    return f"{format_bytes(int(value)) if unit == 'B' else format_count(value)}/s"


class PhaseBars:
    """A context manager that shows phases by the names and amounts given to `update`.

    Args:
        console: Where the bars go; None makes one over standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._current: str | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=14),
            _Amount(),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def update(self, phase: str, done: float, total: float | None, unit: str) -> None:
        """Show how far a phase is; the first call of a phase ends the one before."""
        if phase != self._current:
            self._end_current()
            self._current = phase
            self._started.setdefault(phase, time.monotonic())
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(phase, total=total, unit=unit)
        self._progress.update(self._tasks[phase], completed=done, total=total)

    def follow_build(self, event: dict[str, Any]) -> None:
        """Show an event of `run_build`."""
        if event["event"] == "progress":
            self.update(event["phase"], event["done"], event["total"], event["unit"])

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._end_current()
        self._progress.stop()

    def _end_current(self) -> None:
        if self._current is None:
            return
        task = self._progress.tasks[self._tasks[self._current]]
        if task.total is not None or task.completed:
            self._progress.update(task.id, total=max(task.total or 0, task.completed))
            self._progress.update(task.id, completed=task.total)
        if not self._console.is_terminal:
            seconds = time.monotonic() - self._started[self._current]
            amount = format_amount(task.completed, task.fields["unit"])
            self._console.print(f"{self._current}: {amount} in {seconds:.1f} s", highlight=False)
        self._current = None


class _Amount(ProgressColumn):
    """Done and rate, short enough for a line of 80 columns; the bar shows the part."""

    def render(self, task: Task) -> Text:
        unit = task.fields["unit"]
        rate = task.finished_speed or task.speed
        speed = "" if not rate else f", {format_rate(rate, unit)}"
        return Text(f"{format_amount(task.completed, unit)}{speed}", no_wrap=True)
