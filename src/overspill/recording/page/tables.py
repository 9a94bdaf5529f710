"""The page's words and tables: what came of it, peaks, phases, marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from overspill.recording.fields import UNKNOWN, column, held
from overspill.recording.ledger import Peak, Snapshot
from overspill.recording.page.kinds import KINDS, limit_noun
from overspill.recording.page.scales import elapsed, short_count
from overspill.recording.phases import PhaseTotal
from overspill.units import format_bytes

_MOST_ROWS = 40
_OWN = (
    ("process_anon_bytes", "The process: anonymous"),
    ("process_file_bytes", "The process: mapped files"),
    ("process_shmem_bytes", "The process: shared"),
)


def verdict(snapshot: Snapshot) -> str:
    """What a reader wants to know first: how close it came, and whether it was killed."""
    killed = snapshot.total("kills") or 0
    told = []
    if killed:
        noun = "process" if killed == 1 else "processes"
        told.append(
            f'<strong class="alarm">The kernel killed {killed} {noun} for going over the limit.'
            "</strong>"
        )
    peak = snapshot.peaks["held_bytes"]
    size, when = format_bytes(peak.value), escape(_when(peak))
    limit = snapshot.limit_bytes
    if limit is None:
        told.append(f"At most {size} could not be taken back at once ({when}).")
    else:
        noun = "the machine's" if limit_noun(snapshot) == "machine" else "the limit of"
        told.append(
            f"At its fullest ({when}), {size} of {noun} {format_bytes(limit)} could not be taken "
            f"back at once: {_room(limit, peak)}."
        )
    return " ".join(told)


def tiles(snapshot: Snapshot) -> str:
    """Figures to see at a glance."""
    limit, peak = snapshot.limit_bytes, snapshot.peaks["held_bytes"]
    own, whose = snapshot.peaks["anon_shmem_bytes"], "Anonymous and shared, at most"
    if limit_noun(snapshot) == "machine" and "process_anon_bytes" in snapshot.peaks:
        own, whose = snapshot.peaks["process_anon_bytes"], "Anonymous of the process, at most"
    part = f"{100 * peak.value / limit:.0f}% of {format_bytes(limit)}" if limit else "no limit"
    found = [
        ("Most that could not be taken back", format_bytes(peak.value), part),
        (whose, format_bytes(own.value), f"at {elapsed(_at(own))}"),
    ]
    for name, title in (("read_bytes", "Read from devices"), ("written_bytes", "Written")):
        total = snapshot.total(name)
        if total is not None:
            mean = total / max(snapshot.elapsed_ns / 1e9, 1e-3)
            found.append((title, format_bytes(total), f"{format_bytes(int(mean))}/s on average"))
    rows = snapshot.total("loader_rows")
    if rows:
        batches = snapshot.total("loader_batches") or 0
        found.append(("Rows from loaders", short_count(rows), f"{batches:,} batches"))
    boxes = "".join(
        f"<div><dt>{title}</dt><dd>{value}<small>{extra}</small></dd></div>"
        for title, value, extra in found
    )
    return f'<dl class="tiles">{boxes}</dl>'


def peaks_table(snapshot: Snapshot) -> str:
    """The most that each kind came to: what the chart shows, for who cannot see it."""
    last, peaks = snapshot.last, snapshot.peaks
    rows = [
        ("", "Cannot be taken back at once", peaks["held_bytes"], int(held(last))),
        *((kind.name, kind.title, peaks[kind.field], int(kind.values(last))) for kind in KINDS),
        *(
            ("", title, peaks[name], int(column(last, name)))
            for name, title in _OWN
            if name in peaks
        ),
    ]
    cells = [
        (
            (f'<i class="{name}"></i>' if name else "") + escape(title),
            format_bytes(peak.value),
            escape(_when(peak)) if peak.value else "",
            "unknown" if value == UNKNOWN else format_bytes(value),
        )
        for name, title, peak, value in rows
    ]
    head = ("Kind", "Most", "When", "At the end")
    return _table("Peaks", head, cells, note="Each at its own moment, over all samples.")


def phases_table(snapshot: Snapshot) -> str:
    """What memory and devices came to in each phase; nothing without phases."""
    totals = snapshot.totals
    if not totals:
        return ""
    shown = sorted(totals, key=lambda total: total.elapsed_ns, reverse=True)[:_MOST_ROWS]
    kept = [total for total in totals if total in shown]
    loaded = any(total.loader_rows for total in kept)
    head = ("Phase", "Time", "Most held", "Read", "Written", *(("Rows",) if loaded else ()))
    note = "Most held: what could not be taken back at once."
    if len(totals) > len(kept):
        note += f" The {len(kept)} longest of {len(totals)} phases."
    return _table("Phases", head, [_phase(total, loaded) for total in kept], note=note)


def marks_table(snapshot: Snapshot) -> str:
    """Marks and their times; nothing without marks."""
    marks = snapshot.marks
    if not marks:
        return ""
    left_out = max(0, len(marks) - _MOST_ROWS) + snapshot.forgotten_marks
    cells = [(escape(mark.name), elapsed(mark.elapsed_ns / 1e9)) for mark in marks[-_MOST_ROWS:]]
    note = f"{left_out} earlier ones are left out." if left_out else ""
    return _table("Marks", ("Mark", "When"), cells, note=note)


def meanings() -> str:
    """What the kinds of memory are."""
    entries = "".join(
        f'<div><dt><i class="{kind.name}"></i>{kind.title}</dt><dd>{kind.meaning}</dd></div>'
        for kind in KINDS
    )
    return (
        f'<section class="meanings"><h2>What is what</h2><dl>{entries}</dl>'
        "<p>A limit kills when what is not clean cache reaches it. Clean cache fills whatever room "
        "is left and does no harm.</p></section>"
    )


def _phase(total: PhaseTotal, loaded: bool) -> tuple[str, ...]:
    name = escape(total.name)
    if total.runs > 1:
        name += f" <small>{total.runs:,} times</small>"
    return (
        name,
        elapsed(total.elapsed_ns / 1e9),
        format_bytes(total.peak_held_bytes),
        format_bytes(total.read_bytes),
        format_bytes(total.written_bytes),
        *((short_count(total.loader_rows),) if loaded else ()),
    )


def _table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, note: str = ""
) -> str:
    first = "".join(f'<th scope="col">{text}</th>' for text in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f"<td>{text}</td>" for text in row[1:])
        + "</tr>"
        for row in rows
    )
    told = f'<p class="note">{note}</p>' if note else ""
    return (
        f'<section id="{title.lower()}"><h2>{title}</h2>'
        '<div class="wide" tabindex="0" role="region" '
        f'aria-label="{title}"><table><thead><tr>{first}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{told}</section>"
    )


def _room(limit: int, peak: Peak) -> str:
    left = limit - peak.value
    return f"{format_bytes(left)} of room were left" if left > 0 else "no room was left"


def _when(peak: Peak) -> str:
    at = elapsed(_at(peak))
    return at if peak.phase is None else f"{at}, {peak.phase}"


def _at(peak: Peak) -> float:
    return peak.elapsed_ns / 1e9
