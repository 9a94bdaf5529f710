"""Phases and marks of a program, and what memory came to in each phase; bounded in number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from overspill.recording.fields import Rows, column, held

_MOST_SPANS = 512
_MOST_NAMES = 512
_MOST_MARKS = 512
_LONGEST_NAME = 200
OTHERS = "(other phases)"


@dataclass(frozen=True)
class Mark:
    """A moment with a name."""

    name: str
    elapsed_ns: int


@dataclass(eq=False)
class Span:
    """One run of a phase; ``stop_ns`` is None while it goes on.

    Attributes:
        name: Its phase.
        start_ns: When it began.
        stop_ns: When it ended.
        before: The sample at its begin.
        last: The latest sample within it.
        fullest: The sample within it that held the most.
        lane: Its place beside others that run at the same time, from 0.
    """

    name: str
    start_ns: int
    stop_ns: int | None
    before: Rows
    last: Rows
    fullest: Rows
    lane: int

    def see(self, row: Rows) -> None:
        """Take in a sample of a moment within it."""
        self.last = row
        if held(row) > held(self.fullest):
            self.fullest = row


@dataclass
class PhaseTotal:
    """All runs of a phase together.

    Attributes:
        name: The phase.
        runs: How many began.
        elapsed_ns: Their time.
        peak_held_bytes: The most that could not be taken back at once, and of that moment:
        peak_anon_bytes: anonymous memory,
        peak_shmem_bytes: shared memory.
        read_bytes: What devices read meanwhile, whoever caused it.
        written_bytes: What was written meanwhile.
        loader_rows: Rows that loaders delivered meanwhile.
    """

    name: str
    runs: int = 0
    elapsed_ns: int = 0
    peak_held_bytes: int = 0
    peak_anon_bytes: int = 0
    peak_shmem_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    loader_rows: int = 0

    def including(self, span: Span, now_ns: int) -> PhaseTotal:
        """The total with a run more."""
        fullest, most = span.fullest, int(held(span.fullest))
        fuller = most >= self.peak_held_bytes
        return PhaseTotal(
            self.name,
            self.runs + 1,
            self.elapsed_ns + (now_ns if span.stop_ns is None else span.stop_ns) - span.start_ns,
            max(self.peak_held_bytes, most),
            int(column(fullest, "anon_bytes")) if fuller else self.peak_anon_bytes,
            int(column(fullest, "shmem_bytes")) if fuller else self.peak_shmem_bytes,
            *(
                getattr(self, name) + int(column(span.last, name) - column(span.before, name))
                for name in ("read_bytes", "written_bytes", "loader_rows")
            ),
        )


class Phases:
    """Runs of phases, their totals by name, and marks. One thread at a time.

    Beyond 512 ended runs the shortest are forgotten, and counted; they stay in the totals. Beyond
    512 names, new ones are told together. Beyond 512 marks, every second one is forgotten.

    Attributes:
        marks: In time order.
        forgotten_spans: How many runs are not in `spans` any more.
        forgotten_marks: How many marks are not.
    """

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.forgotten_spans = self.forgotten_marks = 0
        self._open: list[Span] = []
        self._ended: list[Span] = []
        self._totals: dict[str, PhaseTotal] = {}

    def begin(self, name: object, now_ns: int, row: Rows) -> Span:
        """A phase begins; what it is called is cut at 200 characters."""
        taken = {span.lane for span in self._open}
        lane = next(number for number in range(len(taken) + 1) if number not in taken)
        span = Span(_named(name), now_ns, None, row, row, row, lane)
        self._open.append(span)
        return span

    def end(self, span: Span, now_ns: int, row: Rows) -> None:
        """It ends; a second time does nothing."""
        if span.stop_ns is not None:
            return
        span.see(row)
        span.stop_ns = now_ns
        self._open.remove(span)
        _add(self._totals, span, now_ns)
        self._ended.append(span)
        if len(self._ended) > _MOST_SPANS:
            self._forget()

    def mark(self, name: object, now_ns: int) -> None:
        """Mark this moment."""
        self.marks.append(Mark(_named(name), now_ns))
        if len(self.marks) > _MOST_MARKS:
            kept = self.marks[::2]
            self.forgotten_marks += len(self.marks) - len(kept)
            self.marks = kept

    def see(self, row: Rows) -> None:
        """A sample was taken."""
        for span in self._open:
            span.see(row)

    def now(self) -> str | None:
        """The phase that goes on and began last."""
        return self._open[-1].name if self._open else None

    def spans(self) -> list[Span]:
        """The runs that are known one by one, by their begin."""
        return sorted([*self._ended, *self._open], key=lambda span: span.start_ns)

    def totals(self, now_ns: int) -> list[PhaseTotal]:
        """Totals by name, those that go on included, in the order in which names first ended."""
        found = dict(self._totals)
        for span in self._open:
            _add(found, span, now_ns)
        return list(found.values())

    def _forget(self) -> None:
        self._ended.sort(key=lambda span: (span.stop_ns or 0) - span.start_ns, reverse=True)
        kept = _MOST_SPANS // 2
        self.forgotten_spans += len(self._ended) - kept
        self._ended = self._ended[:kept]


def lanes_of(spans: Iterable[Span]) -> int:
    """How many run side by side at most."""
    return max((span.lane + 1 for span in spans), default=0)


def _add(totals: dict[str, PhaseTotal], span: Span, now_ns: int) -> None:
    name = span.name if span.name in totals or len(totals) < _MOST_NAMES else OTHERS
    totals[name] = totals.get(name, PhaseTotal(name)).including(span, now_ns)


def _named(name: object) -> str:
    text = str(name)
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"
