"""One HTML page of a recording: no other file, no address, no script but its own few lines.

What a program names (titles, phases, marks) is text and stays text: it is escaped wherever it
stands, and the page's own policy lets no script run but the one whose digest it names.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from importlib.resources import files

from overspill.recording.document import as_json
from overspill.recording.ledger import Snapshot
from overspill.recording.page.figures import device_figure, loader_figure, memory_figure
from overspill.recording.page.scales import elapsed
from overspill.recording.page.tables import (
    marks_table,
    meanings,
    peaks_table,
    phases_table,
    tiles,
    verdict,
)
from overspill.recording.page.timeline import Timeline


def as_page(snapshot: Snapshot) -> str:
    """The recording as a page, the document within; 30 to 400 KB, 2 to 10 ms."""
    timeline = Timeline.of(snapshot)
    title = escape(f"{snapshot.title}: memory")
    script = _asset("page.js")
    parts = (
        _header(snapshot),
        tiles(snapshot),
        memory_figure(timeline),
        device_figure(timeline),
        loader_figure(timeline),
        peaks_table(snapshot),
        phases_table(snapshot),
        marks_table(snapshot),
        meanings(),
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + '\n</main>\n<div id="tip" aria-hidden="true" hidden></div>\n'
        f'<script type="application/json" id="recording">{_as_data(snapshot)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _header(snapshot: Snapshot) -> str:
    if snapshot.running:
        state = "still running when this was written"
    elif snapshot.ended_by is None:
        state = "ended"
    else:
        state = f"ended by {snapshot.ended_by}"
    facts = (
        f"Began {snapshot.started.replace('T', ' ')}",
        f"{elapsed(snapshot.elapsed_ns / 1e9)}, {state}",
        f"process {snapshot.pid}",
        f"{snapshot.samples:,} samples, one every {elapsed(snapshot.interval_ns / 1e9)}",
        f"memory of {snapshot.source}",
    )
    listed = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (
        f'<header><p class="of">Memory report</p><h1>{escape(snapshot.title)}</h1>'
        f'<p class="verdict">{verdict(snapshot)}</p><ul class="facts">{listed}</ul></header>'
    )


def _as_data(snapshot: Snapshot) -> str:
    """The document where no text in it can end the element or begin a comment."""
    text = as_json(snapshot)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(name: str) -> str:
    return files("overspill.recording.page").joinpath(name).read_text(encoding="utf-8")
