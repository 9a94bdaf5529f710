"""Bars: as much as a line holds, nothing where nothing is wanted, no end where nobody reads."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from overspill.cli.progress import PhaseBars, StderrConsole, format_duration


def shown(width: int, *, terminal: bool = True, **options: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    with PhaseBars(console, **options) as bars:
        for done in (0, 300, 600, 900):
            bars.update("move edge arrays", done * 10**7, 10**10, "B")
    return file.getvalue()


@pytest.mark.parametrize("width", [20, 40, 60, 75])
def test_a_narrow_bar_is_one_line_of_whole_parts(width: int) -> None:
    told = shown(width)
    visible = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", told).replace("\r", "\n").split("\n")
    assert max(len(line) for line in visible) <= width
    assert any(line.startswith("move edge arrays") for line in visible)
    assert ("100%" in told) == (width >= 40)


def test_a_wide_bar_has_amount_rate_and_time() -> None:
    told = shown(80)
    assert "9.3 GiB" in told and "━" in told and "0:00:0" in told


def test_without_a_terminal_a_phase_is_a_line() -> None:
    told = shown(20, terminal=False)
    assert told.startswith("move edge arrays: 9.3 GiB in ") and told.count("\n") == 1


@pytest.mark.parametrize("option", ["silent", "quick"])
def test_what_is_not_wanted_is_not_shown(option: str) -> None:
    assert shown(80, terminal=False, **{option: True}) == ""


def test_a_reader_that_is_gone_ends_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = StderrConsole()
    console.file = Gone()
    with PhaseBars(console) as bars:
        bars.say("plan")
        bars.update("partition", 1, 2, "B")
        bars.update("build rows", 1, 2, "edges")
    assert console.quiet


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.44, "0.4 s"), (42.4, "42 s"), (185, "3:05"), (3723.9, "1:02:03")],
)
def test_durations(seconds: float, told: str) -> None:
    assert format_duration(seconds) == told
