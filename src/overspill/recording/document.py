"""A recording as one JSON document, for programs; the page carries the same within itself."""

from __future__ import annotations

import json
from typing import Any

from overspill.recording.fields import FIELDS, UNKNOWN, column
from overspill.recording.ledger import Snapshot
from overspill.recording.phases import PhaseTotal, Span

FORMAT, VERSION = "overspill-recording", 1


def as_document(snapshot: Snapshot) -> dict[str, Any]:
    """The recording in plain values; see `Recording.to_json` for its keys."""
    gap = snapshot.longest_gap
    return {
        "format": FORMAT,
        "version": VERSION,
        "title": snapshot.title,
        "pid": snapshot.pid,
        "started": snapshot.started,
        "source": snapshot.source,
        "interval_s": snapshot.interval_ns / 1e9,
        "elapsed_s": _seconds(snapshot.elapsed_ns),
        "running": snapshot.running,
        "ended_by": snapshot.ended_by,
        "samples": snapshot.samples,
        "samples_a_row": snapshot.samples_a_row,
        "longest_gap": gap and {"start_s": _seconds(gap[0]), "stop_s": _seconds(gap[1])},
        "peaks": {
            name: {
                "nbytes": peak.value,
                "elapsed_s": _seconds(peak.elapsed_ns),
                "phase": peak.phase,
            }
            for name, peak in snapshot.peaks.items()
            if name != "limit_bytes"
        },
        "columns": {_named(name): _values(snapshot, name) for name in FIELDS},
        "phases": [_total(total) for total in snapshot.totals],
        "spans": [_span(span) for span in snapshot.spans],
        "spans_left_out": snapshot.forgotten_spans,
        "marks": [
            {"name": mark.name, "elapsed_s": _seconds(mark.elapsed_ns)} for mark in snapshot.marks
        ],
        "marks_left_out": snapshot.forgotten_marks,
    }


def as_json(snapshot: Snapshot) -> str:
    """The document as text on one line, all of it ASCII."""
    return json.dumps(as_document(snapshot), separators=(",", ":"), allow_nan=False)


def _values(snapshot: Snapshot, name: str) -> list[int | float | None]:
    values = column(snapshot.rows, name).tolist()
    if name.endswith("_ns"):
        return [_seconds(value) for value in values]
    return [None if value == UNKNOWN else value for value in values]


def _total(total: PhaseTotal) -> dict[str, Any]:
    return {
        _named(name): _seconds(value) if name.endswith("_ns") else value
        for name, value in vars(total).items()
    }


def _span(span: Span) -> dict[str, Any]:
    stop = span.stop_ns
    return {
        "name": span.name,
        "start_s": _seconds(span.start_ns),
        "stop_s": None if stop is None else _seconds(stop),
        "lane": span.lane,
    }


def _named(name: str) -> str:
    return name.removesuffix("_ns") + "_s" if name.endswith("_ns") else name


def _seconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e9, 3)
