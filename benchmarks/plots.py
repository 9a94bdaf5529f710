"""Plots of results as SVG: the same results give the same bytes, and both themes can be read.

A plot brings its own background, light or dark as the reader's system prefers, so that its text is
never on a colour that it was not made for, whatever theme the page around it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.harness import Alike, Case, Result, Spread, speed_ratio
from benchmarks.report import ratio_told
from benchmarks.scaling import Series, fitted
from overspill.units import format_bytes

_WIDTH, _LEFT, _RIGHT = 760, 290, 560
_ROW, _HEAD, _FOOT = 20, 30, 34
_PANEL, _LEGEND = 170, 330
_STYLE = """
svg { --back: #ffffff; --text: #24292f; --line: #d0d7de; --ours: #00796b; --limit: #c2410c;
  --peer: #6e7781; --s0: #00796b; --s1: #c2410c; --s2: #6639ba; --s3: #0969da; --s4: #9a6700;
  --s5: #bf3989; --s6: #57606a; --s7: #116329 }
@media (prefers-color-scheme: dark) { svg { --back: #1c2128; --text: #e6edf3; --line: #444c56;
  --ours: #4db6ac; --limit: #ff9e64; --peer: #9da7b3; --s0: #4db6ac; --s1: #ff9e64; --s2: #c297ff;
  --s3: #6cb6ff; --s4: #daaa3f; --s5: #fc8dc7; --s6: #adbac7; --s7: #6bc46d } }
.back { fill: var(--back) } .grid { stroke: var(--line) } .one { stroke: var(--text) }
text { fill: var(--text); font: 12px system-ui, sans-serif } .title { font-weight: 600 }
.small { font-size: 11px } .ours { stroke: var(--ours); fill: var(--ours) }
.limit { stroke: var(--limit); fill: var(--limit) } .peer { stroke: var(--peer); fill: var(--peer) }
""" + "".join(f".s{at} {{ stroke: var(--s{at}); fill: var(--s{at}) }}\n" for at in range(8))


def speeds_plot(results: Sequence[Result]) -> str:
    """Each contender's speed against the baseline, case below case: median and extremes.

    Args:
        results: Cases; those without a round are left out.

    Returns:
        An SVG; empty where nothing is left.
    """
    held = [one for one in results if one.rounds and len(one.case.contenders) > 1]
    parts: list[str] = []
    top = 0
    for result in held:
        parts += _speeds(result, top)
        top += _HEAD + _ROW * len(result.case.contenders) + _FOOT
    return _svg("Speeds", top, parts) if held else ""


def scaling_plot(series: Sequence[Series]) -> str:
    """Seconds against size, both in logarithms, a panel for each case; empty without a series."""
    cases = dict.fromkeys(one.case for one in series)
    parts: list[str] = []
    for at, case in enumerate(cases):
        parts += _scaled(case, [one for one in series if one.case == case], at * _PANEL)
    return _svg("Time against size", len(cases) * _PANEL, parts) if cases else ""


def _speeds(result: Result, top: int) -> Iterator[str]:
    case = result.case
    held = {
        one.name: speed_ratio(result.rounds, of=one.name, against=case.baseline)
        for one in case.contenders
    }
    ticks = _ticks([end for one in held.values() for end in (one.low, one.high)])
    bottom = top + _HEAD + _ROW * len(held)
    yield _text(12, top + 20, case.name, "title")
    for tick in ticks:
        x = _along(tick, ticks, _LEFT, _RIGHT)
        kind = "one" if tick == 1 else "grid"
        yield f'<line class="{kind}" x1="{x:.1f}" y1="{top + _HEAD}" x2="{x:.1f}" y2="{bottom}"/>'
        if _is_told(tick, ticks):
            yield _text(x, bottom + 14, f"{tick:g}", "small", anchor="middle")
    yield _text(_RIGHT + 12, bottom + 14, f"speed / {case.baseline}"[:34], "small")
    for at, (name, ratio) in enumerate(held.items()):
        y = top + _HEAD + _ROW * at + _ROW / 2
        ends = [_along(end, ticks, _LEFT, _RIGHT) for end in (ratio.low, ratio.median, ratio.high)]
        yield from _mark(y, ends, _kind(case, name))
        yield _text(_LEFT - 10, y + 4, _cut(name), anchor="end")
        yield _text(_RIGHT + 12, y + 4, _told(ratio))


def _mark(y: float, ends: Sequence[float], kind: str) -> Iterator[str]:
    low, middle, high = ends
    yield (
        f'<line class="{kind}" stroke-width="2" x1="{low:.1f}" y1="{y:.1f}" x2="{high:.1f}" '
        f'y2="{y:.1f}"/>'
    )
    yield f'<circle class="{kind}" cx="{middle:.1f}" cy="{y:.1f}" r="4"/>'


def _kind(case: Case, name: str) -> str:
    if name == case.limit:
        return "limit"
    ours = {target.of for target in case.targets if not isinstance(target, Alike)}
    return "ours" if name in ours or name.startswith("overspill") else "peer"


def _told(ratio: Spread) -> str:
    if ratio.low == ratio.high:
        return ratio_told(ratio.median)
    return f"{ratio_told(ratio.median)} ({ratio_told(ratio.low)} to {ratio_told(ratio.high)})"


def _scaled(case: str, series: Sequence[Series], top: int) -> Iterator[str]:
    left, right, high, low = 70, _WIDTH - _LEGEND - 20, top + 34, top + _PANEL - 34
    sizes = sorted({point.size_bytes for one in series for point in one.points})
    seconds = [
        end
        for one in series
        for point in one.points
        for end in (point.seconds.low, point.seconds.high)
    ]
    ticks = _ticks(seconds)
    yield _text(12, top + 20, case, "title")
    for tick in ticks:
        if _is_told(tick, ticks):
            y = _along(tick, ticks, low, high)
            yield f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
            yield _text(left - 8, y + 4, f"{tick:g} s", "small", anchor="end")
    for size in sizes:
        x = _along(size, sizes, left + 20, right - 20)
        yield _text(x, low + 16, format_bytes(size), "small", anchor="middle")
    for at, one in enumerate(series):
        kind = f"s{at % 8}"
        spots = [
            (
                _along(point.size_bytes, sizes, left + 20, right - 20),
                _along(point.seconds.median, ticks, low, high),
            )
            for point in one.points
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        yield f'<polyline class="{kind}" style="fill: none" stroke-width="2" points="{path}"/>'
        yield from (f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in spots)
        y = top + 40 + 17 * at
        yield f'<circle class="{kind}" cx="{right + 22}" cy="{y - 4}" r="4"/>'
        told = f"{_cut(one.way)}: {fitted(one.points).exponent:.2f}"
        yield _text(right + 32, y, told, "small")


def _along(value: float, ends: Sequence[float], first: float, last: float) -> float:
    """Where a value lies between two places, by its logarithm between the ends."""
    if ends[0] == ends[-1]:
        return (first + last) / 2
    share = math.log(value / ends[0]) / math.log(ends[-1] / ends[0])
    return first + share * (last - first)


def _ticks(values: Sequence[float]) -> list[float]:
    """The steps of 1, 2, 5 that hold all values, and 1 where it is near."""
    powers = range(math.floor(math.log10(min(values))) - 1, math.ceil(math.log10(max(values))) + 2)
    steps = [float(f"{step}e{power}") for power in powers for step in (1, 2, 5)]
    first = max(at for at, step in enumerate(steps) if step <= min(values))
    last = min(at for at, step in enumerate(steps) if step >= max(values))
    return steps[first : max(last, first + 1) + 1]


def _is_told(tick: float, ticks: Sequence[float]) -> bool:
    """Whether there is room for its number: of many, only those of powers of ten."""
    power = math.log10(tick)
    return len(ticks) <= 7 or abs(power - round(power)) < 1e-9


def _cut(name: str) -> str:
    return name if len(name) <= 44 else f"{name[:43]}…"


def _text(x: float, y: float, text: str, kind: str = "", *, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(title: str, height: int, parts: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height + 8}" '
            f'width="{_WIDTH}" height="{height + 8}" role="img">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="back" width="{_WIDTH}" height="{height + 8}" rx="6"/>',
            *parts,
            "</svg>",
            "",
        ]
    )
