"""The page's charts: memory by kind, devices, loaders."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from overspill.recording.fields import UNKNOWN, column
from overspill.recording.page.charts import Axis, area, line, plot, stairs
from overspill.recording.page.kinds import KINDS, limit_noun
from overspill.recording.page.rates import Rates, rates
from overspill.recording.page.scales import (
    byte_step,
    count_step,
    elapsed,
    round_bytes,
    short_count,
    steps_up_to,
)
from overspill.recording.page.timeline import Timeline
from overspill.units import format_bytes

# A limit further away than this many times the use would press the use against the ground.
_FARTHEST_LIMIT = 4


def memory_figure(timeline: Timeline) -> str:
    """Memory over time, its kinds stacked, against the limit."""
    snapshot, rows = timeline.snapshot, timeline.snapshot.rows
    times = timeline.parts(column(rows, "elapsed_ns") / 1e9)
    shown = [kind for kind in KINDS if snapshot.peaks[kind.field].value > 0]
    tops = np.cumsum([kind.values(rows) for kind in shown], axis=0).astype(np.float64)
    most = float(tops[-1].max()) if shown else 1.0
    limits = column(rows, "limit_bytes").astype(np.float64)
    highest = float(limits.max())
    within = 0 < highest <= _FARTHEST_LIMIT * most
    axis = _byte_axis(max(highest, most) * 1.12 if within else most * 1.12)
    # From the top down: each area covers what is not its own of the one before.
    shapes = [
        area(times, top, axis, name=kind.name)
        for kind, top in zip(reversed(shown), reversed(tops), strict=True)
    ]
    noun, over, note = limit_noun(snapshot), "", ""
    if within:
        known = limits != UNKNOWN
        shapes.append(line(times[known], limits[known], axis, name="limit"))
        text = f"{noun} {format_bytes(int(limits[-1]))}"
        over = f'<span class="limit" style="top:{axis.percent(limits[-1]):.2f}%">{text}</span>'
    elif highest > 0:
        note = f"The {noun}, {format_bytes(int(highest))}, lies far above this chart."
    told = f"Memory over {elapsed(timeline.whole_s)}, by kind; the table of peaks says the same."
    drawn = plot([*shapes, *timeline.lines()], axis, told=told, over=[over])
    legend = [(kind.name, kind.title, "") for kind in reversed(shown)]
    chart = timeline.strip() + drawn + timeline.axis()
    return _figure("Memory", legend, chart, note + _gap(timeline), span_s=0)


def device_figure(timeline: Timeline) -> str:
    """What devices read and wrote a second."""
    snapshot = timeline.snapshot
    title = "Devices"
    if snapshot.total("read_bytes") is None:
        return _without(title, "The kernel does not show here what devices did (/proc/self/io).")
    held = {
        name: rates(snapshot.rows, f"{name}_bytes", interval_ns=snapshot.interval_ns)
        for name in ("read", "written")
    }
    if not any(rate.total for rate in held.values()):
        return _without(title, "Nothing was read from a device, and nothing written to one.")
    axis = _byte_axis(max(rate.most for rate in held.values()) * 1.12, "/s")
    shapes = [shape for name, rate in held.items() for shape in _rate(timeline, rate, axis, name)]
    told = "; ".join(f"{name} {format_bytes(int(rate.total))}" for name, rate in held.items())
    legend = [
        (
            name,
            name.capitalize(),
            f"{format_bytes(int(rate.total))} in all, ≤ {_fast(rate)}" if rate.total else "nothing",
        )
        for name, rate in held.items()
    ]
    drawn = plot([*shapes, *timeline.lines()], axis, told=f"Devices over time: {told}")
    note = (
        f"Means over {elapsed(held['read'].span_s)}, of the process and its children. Writes "
        "count when a page becomes dirty."
    )
    chart = drawn + timeline.axis()
    return _figure(title, legend, chart, note, span_s=held["read"].span_s)


def loader_figure(timeline: Timeline) -> str:
    """Rows that loaders delivered a second; nothing where none ran."""
    snapshot = timeline.snapshot
    total, batches = snapshot.total("loader_rows"), snapshot.total("loader_batches") or 0
    if not total:
        return ""
    # Batches come in lumps: some of them a span.
    spans = min(max(8, batches // 2), 160)
    rate = rates(snapshot.rows, "loader_rows", interval_ns=snapshot.interval_ns, most_spans=spans)
    top = max(rate.most, 1) * 1.12
    axis = Axis(top, [(y, f"{short_count(y)}/s") for y in steps_up_to(top, count_step(top))])
    waited = (snapshot.total("loader_waited_ns") or 0) / 1e9
    asked = snapshot.total("loader_bytes") or 0
    extra = f"{short_count(total)} in {batches:,} batches, ≤ {short_count(rate.most)}/s"
    drawn = plot(
        [*_rate(timeline, rate, axis, "rows"), *timeline.lines()],
        axis,
        told=f"Rows a second that loaders delivered over time; {total:,} in all",
    )
    note = (
        f"Means over {elapsed(rate.span_s)}. The rows are {format_bytes(asked)}; the program "
        f"waited {elapsed(waited)} for batches."
    )
    legend = [("rows", "Rows", extra)]
    return _figure("Loaders", legend, drawn + timeline.axis(), note, span_s=rate.span_s)


def _rate(timeline: Timeline, rate: Rates, axis: Axis, name: str) -> list[str]:
    edges, values = stairs(timeline.parts(rate.edges_s), rate.values)
    return [
        area(edges, values, axis, name=f"{name} faint"),
        line(edges, values, axis, name=name),
    ]


def _fast(rate: Rates) -> str:
    return f"{format_bytes(int(rate.most))}/s"


def _byte_axis(top: float, per: str = "") -> Axis:
    top = max(top, 1024.0)
    ticks = steps_up_to(top, byte_step(top, 5))
    return Axis(top, [(y, round_bytes(y) + per if y else "0") for y in ticks])


def _gap(timeline: Timeline) -> str:
    gap = timeline.snapshot.longest_gap
    if gap is None:
        return ""
    start, stop = (nanoseconds / 1e9 for nanoseconds in gap)
    return (
        f" No sample could be taken for {elapsed(stop - start)}, from {elapsed(start)} on: "
        "something held the interpreter, the machine was too busy, or the recording, at a short "
        "interval, made up for what a page had taken."
    )


def _figure(
    title: str, legend: Sequence[tuple[str, str, str]], chart: str, note: str, *, span_s: float
) -> str:
    entries = "".join(
        f'<li><i class="{name}"></i>{escape(text)}'
        + (f" <small>{escape(extra)}</small>" if extra else "")
        + "</li>"
        for name, text, extra in legend
    )
    told = f'<p class="note">{escape(note.strip())}</p>' if note.strip() else ""
    return (
        f'<figure id="{title.lower()}" data-span="{span_s:.6f}"><figcaption><h2>{title}</h2>'
        f'<ul class="legend">{entries}</ul></figcaption>'
        f'<div class="chart">{chart}</div>{told}</figure>'
    )


def _without(title: str, text: str) -> str:
    return (
        f'<figure id="{title.lower()}"><figcaption><h2>{title}</h2></figcaption>'
        f'<p class="note">{text}</p></figure>'
    )
