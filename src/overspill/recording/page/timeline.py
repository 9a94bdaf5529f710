"""What all charts of a page share: the width of time, phases and marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from overspill.recording.ledger import Snapshot
from overspill.recording.page.charts import Floats, times_axis, upright
from overspill.recording.page.scales import elapsed, steps_up_to, time_step
from overspill.recording.phases import Span, lanes_of

_MOST_LANES = 5
_MOST_LINES = 60  # more lines across a chart than this would hide it
_LEAST_LABEL, _LEAST_PHONE_LABEL = 0.045, 0.13  # parts of the width


@dataclass(frozen=True)
class Timeline:
    """The time of a recording as parts of a chart's width.

    Attributes:
        snapshot: The recording.
        whole_s: The seconds that the width stands for.
    """

    snapshot: Snapshot
    whole_s: float

    @classmethod
    def of(cls, snapshot: Snapshot) -> Timeline:
        """The timeline of a recording."""
        return cls(snapshot, max(snapshot.elapsed_ns, 1_000_000) / 1e9)

    def parts(self, seconds: Floats) -> Floats:
        """Times as parts of the width, 0 to 1."""
        found: Floats = (seconds / self.whole_s).clip(0, 1)
        return found

    def part(self, nanoseconds: int) -> float:
        """One time."""
        return min(nanoseconds / 1e9 / self.whole_s, 1.0)

    def axis(self) -> str:
        """Labels of times."""
        step = time_step(self.whole_s)
        return times_axis(
            [(s / self.whole_s, elapsed(s) if s else "0") for s in steps_up_to(self.whole_s, step)]
        )

    def lines(self) -> list[str]:
        """Lines across a chart at marks, unless there are too many to see through."""
        marks = self.snapshot.marks
        if len(marks) > _MOST_LINES:
            return []
        return [upright(self.part(mark.elapsed_ns), name="mark") for mark in marks]

    def strip(self) -> str:
        """Phases and the names of marks, to stand above a chart."""
        return self._lanes() + self._marks()

    def _lanes(self) -> str:
        shown = [span for span in self.snapshot.spans if span.lane < _MOST_LANES]
        if not shown:
            return ""
        seen: dict[str, int] = {}
        boxes = "".join(self._box(span, seen.setdefault(span.name, len(seen))) for span in shown)
        return f'<div class="lanes" style="--lanes:{lanes_of(shown)}">{boxes}</div>'

    def _box(self, span: Span, number: int) -> str:
        stop_ns = self.snapshot.elapsed_ns if span.stop_ns is None else span.stop_ns
        start, stop = self.part(span.start_ns), self.part(stop_ns)
        told = f"{span.name}: {elapsed((stop_ns - span.start_ns) / 1e9)}"
        style = _label_class(stop - start) + (" odd" if number % 2 else "")
        return (
            f'<span class="phase{style}" style="left:{100 * start:.2f}%;'
            f'width:{100 * (stop - start):.2f}%;--lane:{span.lane}" title="{escape(told)}">'
            f"{escape(span.name)}</span>"
        )

    def _marks(self) -> str:
        if not self.snapshot.marks:
            return ""
        places = [self.part(mark.elapsed_ns) for mark in self.snapshot.marks]
        labels = []
        for mark, place, room in zip(self.snapshot.marks, places, _rooms(places), strict=True):
            told = f"{mark.name}: {elapsed(mark.elapsed_ns / 1e9)}"
            labels.append(
                f'<span class="mark{_label_class(room)}" style="left:{100 * place:.2f}%;'
                f'width:{100 * room:.2f}%" title="{escape(told)}">{escape(mark.name)}</span>'
            )
        return f'<div class="marks">{"".join(labels)}</div>'


def _label_class(room: float) -> str:
    """Whether a label of some part of the width is shown nowhere, not on a phone, or always."""
    return " bare" if room < _LEAST_LABEL else " tight" if room < _LEAST_PHONE_LABEL else ""


def _rooms(places: Sequence[float]) -> list[float]:
    """The room of each label: up to the next one."""
    return [
        max(after - place, 0.0) for place, after in zip(places, [*places[1:], 1.0], strict=True)
    ]
