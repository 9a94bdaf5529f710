"""Live bars for what takes time, one a phase, with rate and time left.

Bars go to standard error, so that standard output stays the result; where standard error is no
terminal, each phase prints one line when it ends. What nobody reads any more is no reason to stop.
"""

from __future__ import annotations

import sys
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

from overspill.cli.lines import columns_of, wrapped
from overspill.units import format_bytes

_ROOM_FOR_BARS = 76


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


def format_duration(seconds: float) -> str:
    """Write a duration for people: 0.4 s, 42 s, 3:05, 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class StderrConsole(Console):
    """Standard error, which may lose its reader without ending the work."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False)

    def on_broken_pipe(self) -> None:
        """Say no more."""
        self.quiet = True


class PhaseBars:
    """A context manager that shows phases by the names and amounts given to `update`.

    Args:
        console: Where the bars go; None makes one over standard error.
        silent: Whether to show nothing at all.
        quick: Whether what is shown is worth a bar while it runs, and no line once it has ended.
    """

    def __init__(
        self, console: Console | None = None, *, silent: bool = False, quick: bool = False
    ) -> None:
        self.console = console or StderrConsole()
        self._silent, self._quick = silent, quick
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._current: str | None = None
        self._progress = Progress(
            *_columns(self.console.width),
            console=self.console,
            disable=silent or not self.console.is_terminal,
            transient=quick,
        )

    def say(self, line: str, *, indent: int = 0) -> None:
        """Print a line above the bars, wrapped where the terminal is narrower."""
        if not self._silent:
            told = wrapped(line, columns_of(sys.stderr), indent=indent)
            self.console.print(told, markup=False, soft_wrap=True)

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
        if not (self._silent or self._quick or self.console.is_terminal):
            seconds = time.monotonic() - self._started[self._current]
            amount = format_amount(task.completed, task.fields["unit"])
            self.console.print(f"{self._current}: {amount} in {seconds:.1f} s", soft_wrap=True)
        self._current = None


def _columns(width: int) -> tuple[ProgressColumn, ...]:
    if width < _ROOM_FOR_BARS:
        return (_OneLine(width),)
    return (
        TextColumn("{task.description}"),
        BarColumn(bar_width=14),
        _Amount(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    )


class _Amount(ProgressColumn):
    """Done and rate, short enough for a line of 80 columns; the bar shows the part."""

    def render(self, task: Task) -> Text:
        unit = task.fields["unit"]
        rate = task.finished_speed or task.speed
        speed = "" if not rate else f", {format_rate(rate, unit)}"
        return Text(f"{format_amount(task.completed, unit)}{speed}", no_wrap=True)


class _OneLine(ProgressColumn):
    """Phase, share, rate and time left: as many of them, in this order, as a narrow line holds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def render(self, task: Task) -> Text:
        rate, left = task.finished_speed or task.speed, task.time_remaining
        parts = [f"{task.percentage:.0f}%" if task.total else ""]
        parts.append(format_rate(rate, task.fields["unit"]) if rate else "")
        parts.append(f"{format_duration(left)} left" if left and not task.finished else "")
        line = str(task.description)
        for part in parts:
            if part and len(line) + 1 + len(part) <= self._width:
                line += f" {part}"
        return Text(line, no_wrap=True)
