"""Phases, their totals, and how much of them is kept."""

from __future__ import annotations

from overspill.recording.phases import OTHERS, Phases, PhaseTotal, lanes_of
from recorded import row


def test_a_total_is_of_the_fullest_moment_and_of_what_was_counted_meanwhile() -> None:
    phases = Phases()
    span = phases.begin("build", 10, row(anon_bytes=5, read_bytes=100))
    phases.see(row(anon_bytes=50, shmem_bytes=7, clean_file_bytes=900, read_bytes=150))
    phases.see(row(anon_bytes=20, shmem_bytes=8, read_bytes=300, written_bytes=4))
    phases.end(span, 40, row(anon_bytes=6, read_bytes=320, written_bytes=9, loader_rows=2))
    again = phases.begin("build", 50, row(anon_bytes=6, read_bytes=400))
    phases.see(row(anon_bytes=1, read_bytes=401))
    expected = PhaseTotal(
        name="build",
        runs=1,
        elapsed_ns=30,
        peak_held_bytes=57,
        peak_anon_bytes=50,
        peak_shmem_bytes=7,
        read_bytes=220,
        written_bytes=9,
        loader_rows=2,
    )
    phases.end(again, 60, row(anon_bytes=1, read_bytes=402))
    (total,) = phases.totals(60)
    assert (total.runs, total.elapsed_ns, total.read_bytes) == (2, 40, 222)
    assert (total.peak_held_bytes, total.peak_anon_bytes) == (57, 50)
    assert PhaseTotal("build").including(span, 99) == expected


def test_what_goes_on_counts_up_to_now_and_ends_once() -> None:
    phases = Phases()
    outer = phases.begin("outer", 0, row())
    inner = phases.begin("inner", 5, row())
    assert phases.now() == "inner"
    assert [(total.name, total.elapsed_ns) for total in phases.totals(9)] == [
        ("outer", 9),
        ("inner", 4),
    ]
    assert (outer.lane, inner.lane, lanes_of(phases.spans())) == (0, 1, 2)
    phases.end(outer, 10, row())  # overlapping, not nested
    phases.end(outer, 99, row())
    third = phases.begin("third", 12, row())
    assert third.lane == 0  # the free one
    phases.end(inner, 20, row())
    phases.end(third, 21, row())
    assert phases.now() is None
    assert [(span.name, span.start_ns, span.stop_ns) for span in phases.spans()] == [
        ("outer", 0, 10),
        ("inner", 5, 20),
        ("third", 12, 21),
    ]


def test_of_a_million_the_longest_are_kept_and_all_are_counted() -> None:
    phases, now = Phases(), 0
    for number in range(2000):
        span = phases.begin(f"step {number}", now, row(anon_bytes=number))
        now += 1000 if number in (3, 700) else 1
        phases.end(span, now, row(anon_bytes=number))
        phases.mark(number, now)
    spans, totals = phases.spans(), phases.totals(now)
    assert len(spans) <= 512 and len(phases.marks) <= 512 and len(totals) <= 513
    assert {"step 3", "step 700"} <= {span.name for span in spans}
    assert len(spans) + phases.forgotten_spans == 2000
    assert len(phases.marks) + phases.forgotten_marks == 2000
    assert [mark.elapsed_ns for mark in phases.marks] == sorted(
        mark.elapsed_ns for mark in phases.marks
    )
    assert sum(total.runs for total in totals) == 2000
    assert sum(total.elapsed_ns for total in totals) == now
    (rest,) = [total for total in totals if total.name == OTHERS]
    assert rest.peak_anon_bytes == 1999


def test_names_are_text_of_bounded_length() -> None:
    phases = Phases()
    phases.mark("é" * 500, 1)
    phases.mark(7, 2)
    assert [len(mark.name) for mark in phases.marks] == [200, 1]
