"""Runs contenders in turn, round by round, and compares them within each round.

Rates of one machine drift two to three times from minute to minute, so two medians taken apart
compare minutes and not contenders. Here every contender runs once a round, each round begins with
another one, and what is quoted is the median of the rounds' ratios. A round in which the physical
limit itself moved by more than a quarter from its median says more about the machine than about
anybody: it is dropped, and another is run, up to three times the rounds asked for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

MIN_ROUNDS = 5
TOLERANCE = 0.25
_MOST_ROUNDS_FACTOR = 3

Figures = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One way of doing the work.

    Attributes:
        name: How tables call it.
        act: The timed part; gets what `before` returned.
        before: Untimed, before each round's act.
        after: Untimed, after it: removes what `act` left, and may report figures. Gets what `act`
            returned, or None where it raised.
        repeats: How often `act` runs within a round, for acts too short for the clock.
        nbytes: What one act moves, for a rate; None where there is none.
        timed: The seconds of an act, from what it returned, where it measures itself in another
            process; None: the clock's.
        note: What a reader must know to judge it fairly.
        point: Where a case holds several sizes of one way: the way, and this one's size in bytes.
    """

    name: str
    act: Callable[[Any], Any]
    before: Callable[[], Any] = lambda: None
    after: Callable[[Any], Figures | None] = lambda _result: None
    repeats: int = 1
    nbytes: int | None = None
    timed: Callable[[Any], float] | None = None
    note: str = ""
    point: tuple[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class SpeedTarget:
    """`of` reaches at least `at_least` times the speed of `against`."""

    of: str
    against: str
    at_least: float


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A figure that `of` reports stays at or below `at_most`."""

    of: str
    figure: str
    at_most: float


@dataclass(frozen=True, kw_only=True)
class Alike:
    """A figure that all of `of` report: its largest is at most `within` above its smallest."""

    of: tuple[str, ...]
    figure: str
    within: float


Target = SpeedTarget | Bound | Alike


@dataclass(frozen=True, kw_only=True)
class Case:
    """Contenders that do the same work.

    Attributes:
        name: The table's title.
        contenders: In the order of the table.
        baseline: Whom the others' speeds are compared with.
        limit: The physical limit, whose steadiness decides which rounds count; None keeps all.
        targets: What is to be reached.
        absent: Peers that are not installed.
        scales: Whether its work grows with the size that it is given.
    """

    name: str
    contenders: Sequence[Contender]
    baseline: str
    limit: str | None = None
    targets: Sequence[Target] = ()
    absent: Sequence[str] = ()
    scales: bool = True


@dataclass(frozen=True)
class Sample:
    """One contender in one round: seconds of one act, and figures of its own."""

    seconds: float
    figures: Figures = field(default_factory=dict)


Round = Mapping[str, Sample]


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of some values."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """A case's rounds: those that count, and how many were dropped."""

    case: Case
    rounds: Sequence[Round]
    dropped: int


def run_case(
    case: Case,
    *,
    rounds: int = MIN_ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    told: Callable[[str], None] = lambda _line: None,
) -> Result:
    """Run a case until enough rounds count.

    Args:
        case: The case.
        rounds: How many rounds shall count.
        clock: Seconds, for the tests of this harness.
        told: Gets a line of progress after each round.

    Returns:
        The rounds that count; fewer than asked for where the limit never held still.

    Raises:
        ValueError: Fewer than one round.
    """
    if rounds < 1:
        raise ValueError(f"at least one round must count; {rounds} were asked for")
    done: list[Round] = []
    kept: list[Round] = []
    while len(kept) < rounds and len(done) < rounds * _MOST_ROUNDS_FACTOR:
        done.append(_one_round(case, first=len(done), clock=clock))
        # Anew each time: the median moves with every round.
        kept = steady_rounds(done, case.limit)
        told(f"{case.name}: round {len(done)}, {len(kept)} of {rounds} count")
    return Result(case, kept, len(done) - len(kept))


def narrowed(case: Case) -> Case:
    """A case of ours alone, with what it is compared with and the limit, for sizes besides."""
    ours = {target.of for target in case.targets if not isinstance(target, Alike)}
    kept = ours | {case.baseline, case.limit}
    return replace(
        case,
        contenders=[one for one in case.contenders if one.name in kept],
        targets=(),
        absent=(),
    )


def steady_rounds(
    rounds: Sequence[Round], limit: str | None, *, tolerance: float = TOLERANCE
) -> list[Round]:
    """The rounds in which the limit's speed lay within `tolerance` of its median."""
    if limit is None or not rounds:
        return list(rounds)
    middle = statistics.median(1 / one[limit].seconds for one in rounds)
    return [one for one in rounds if abs(1 / one[limit].seconds / middle - 1) <= tolerance]


def speed_ratio(rounds: Sequence[Round], *, of: str, against: str) -> Spread:
    """How many times faster `of` was than `against`, round by round."""
    return spread([one[against].seconds / one[of].seconds for one in rounds])


def figure(rounds: Sequence[Round], *, of: str, name: str) -> Spread:
    """The spread of a figure that `of` reports."""
    return spread([one[of].figures[name] for one in rounds])


def excess(rounds: Sequence[Round], *, of: Sequence[str], name: str) -> Spread:
    """By what share the largest of their figures exceeds the smallest, round by round."""
    held = [[one[contender].figures[name] for contender in of] for one in rounds]
    return spread([max(figures) / min(figures) - 1 for figures in held])


def is_met(rounds: Sequence[Round], target: Target) -> bool:
    """Whether the median reaches the target."""
    if isinstance(target, Alike):
        return excess(rounds, of=target.of, name=target.figure).median <= target.within
    if isinstance(target, Bound):
        return figure(rounds, of=target.of, name=target.figure).median <= target.at_most
    return speed_ratio(rounds, of=target.of, against=target.against).median >= target.at_least


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def _one_round(case: Case, *, first: int, clock: Callable[[], float]) -> Round:
    count = len(case.contenders)
    # Each round begins with another contender, so that none always follows the same one.
    order = [case.contenders[(first + step) % count] for step in range(count)]
    return {contender.name: _sample(contender, clock) for contender in order}


def _sample(contender: Contender, clock: Callable[[], float]) -> Sample:
    given = contender.before()
    result = None
    figures: Figures | None = None
    try:
        start = clock()
        for _ in range(contender.repeats):
            result = contender.act(given)
        seconds = (clock() - start) / contender.repeats
        if contender.timed is not None:
            seconds = contender.timed(result)
    finally:
        figures = contender.after(result)
    return Sample(seconds, dict(figures or {}))
