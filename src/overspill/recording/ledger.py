"""All that a recording knows, kept in a fixed amount of memory, and told as one snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

from overspill.recording.fields import LEVELS, UNKNOWN, Rows, column, held, other
from overspill.recording.phases import Mark, Phases, PhaseTotal, Span
from overspill.recording.series import Series

# A stretch without samples is told if it is this many times the interval, and this long.
_GAP_INTERVALS, _GAP_NS = 5, 500_000_000


@dataclass(frozen=True)
class Peak:
    """The most that one kind came to.

    Attributes:
        value: Bytes.
        elapsed_ns: When.
        phase: The phase that had begun last, if any.
    """

    value: int
    elapsed_ns: int
    phase: str | None


@dataclass(frozen=True)
class Snapshot:
    """A recording as it stands, for a page or a document.

    Attributes:
        title: What was recorded.
        pid: Its process.
        started: When, in ISO 8601 with the zone.
        source: Whose memory it is: a group's directory, /proc/meminfo, or in words.
        interval_ns: Time between samples, as asked for.
        elapsed_ns: How long it went on.
        running: Whether it still goes on.
        ended_by: The name of the exception that ended it.
        samples: How many samples were taken.
        samples_a_row: How many a row stands for.
        rows: (rows, fields).
        last: The last sample, (fields,).
        peaks: By level, and of "held_bytes", "other_bytes" and "anon_shmem_bytes", over all
            samples.
        totals: Of the phases, by name.
        spans: Runs of phases.
        forgotten_spans: How many more there were.
        marks: Marks.
        forgotten_marks: How many more there were.
        longest_gap: The longest stretch without samples: its begin and end; None of none.
    """

    title: str
    pid: int
    started: str
    source: str
    interval_ns: int
    elapsed_ns: int
    running: bool
    ended_by: str | None
    samples: int
    samples_a_row: int
    rows: Rows
    last: Rows
    peaks: dict[str, Peak]
    totals: list[PhaseTotal]
    spans: list[Span]
    forgotten_spans: int
    marks: list[Mark]
    forgotten_marks: int
    longest_gap: tuple[int, int] | None

    def total(self, name: str) -> int | None:
        """What a counter came to; None where the system does not tell."""
        value = int(column(self.last, name))
        return None if value == UNKNOWN else value

    @property
    def limit_bytes(self) -> int | None:
        """The limit at the last sample."""
        return self.total("limit_bytes")


@dataclass
class Ledger:
    """Takes in samples, phases and marks. One thread at a time.

    Attributes:
        interval_ns: Time between samples, as asked for.
        series: The rows.
        phases: Phases and marks.
        peaks: The most of each kind.
        samples: How many samples were taken.
        last: The latest sample; None before the first.
        longest_gap: The longest stretch without samples: its begin and end; None of none.
    """

    interval_ns: int
    series: Series = field(default_factory=Series)
    phases: Phases = field(default_factory=Phases)
    peaks: dict[str, Peak] = field(default_factory=dict)
    samples: int = 0
    last: Rows | None = None
    longest_gap: tuple[int, int] | None = None

    def add(self, row: Rows, source: str, before: str) -> None:
        """Take in a sample.

        Args:
            row: It, (fields,).
            source: Whose memory it is.
            before: Whose the sample before was.
        """
        now = int(column(row, "elapsed_ns"))
        if self.last is not None:
            self._look_for_gap(int(column(self.last, "elapsed_ns")), now)
            self._mark_what_happened(row, self.last, now)
            if source != before:
                self.phases.mark(f"from here on: {source}", now)
        self.series.append(row)
        self.phases.see(row)
        self.samples += 1
        self.last = row
        levels = {name: int(column(row, name)) for name in LEVELS}
        levels["held_bytes"] = int(held(row))
        levels["other_bytes"] = int(other(row))
        levels["anon_shmem_bytes"] = levels["anon_bytes"] + levels["shmem_bytes"]
        for name, value in levels.items():
            if value > self.peaks.get(name, _NOTHING).value:
                self.peaks[name] = Peak(value, now, self.phases.now())

    def _look_for_gap(self, before: int, now: int) -> None:
        longest = self.longest_gap or (0, max(_GAP_INTERVALS * self.interval_ns, _GAP_NS))
        if now - before > longest[1] - longest[0]:
            self.longest_gap = (before, now)

    def _mark_what_happened(self, row: Rows, before: Rows, now: int) -> None:
        killed = int(column(row, "kills") - column(before, "kills"))
        if killed > 0:
            noun = "process" if killed == 1 else "processes"
            self.phases.mark(f"the kernel killed {killed} {noun}", now)


_NOTHING = Peak(-1, 0, None)
