from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from benchmarks.harness import (
    Alike,
    Bound,
    Case,
    Contender,
    Round,
    Sample,
    SpeedTarget,
    Spread,
    excess,
    figure,
    is_met,
    run_case,
    speed_ratio,
    spread,
    steady_rounds,
)


def rounds_of(**seconds: list[float]) -> list[Round]:
    count = len(next(iter(seconds.values())))
    return [{name: Sample(values[at]) for name, values in seconds.items()} for at in range(count)]


class Clock:
    """Time that passes only when a contender says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, *seconds: float) -> Callable[[Any], int]:
        """An act that takes these seconds in turn, the last for ever after; returns its number."""
        calls = 0

        def act(_given: Any) -> int:
            nonlocal calls
            self.now += seconds[min(calls, len(seconds) - 1)]
            calls += 1
            return calls

        return act


def run(clock: Clock, *contenders: Contender, rounds: int = 3, limit: str | None = None) -> Any:
    case = Case(name="case", contenders=contenders, baseline=contenders[0].name, limit=limit)
    return run_case(case, rounds=rounds, clock=clock)


def test_ratios_are_taken_within_a_round_and_not_of_medians() -> None:
    rounds = rounds_of(ours=[1, 10, 2], peer=[3, 20, 2])
    assert speed_ratio(rounds, of="ours", against="peer") == Spread(2, 1, 3)
    assert speed_ratio(rounds, of="peer", against="ours") == Spread(1 / 2, 1 / 3, 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([4.0], (4, 4, 4)), ([5, 1, 3], (3, 1, 5)), ([1, 2, 3, 10], (2.5, 1, 10))],
)
def test_spread(values: list[float], expected: tuple[float, float, float]) -> None:
    assert spread(values) == Spread(*expected)


@pytest.mark.parametrize(
    ("limit_rates", "kept"),
    [
        ([1, 1, 1], [0, 1, 2]),
        ([100, 125, 75, 100, 100], [0, 1, 2, 3, 4]),  # a quarter off still counts
        ([100, 126, 74, 100, 100], [0, 3, 4]),
        ([100, 10, 100], [0, 2]),
        ([1], [0]),
        ([], []),
    ],
)
def test_rounds_in_which_the_limit_moved_are_dropped(
    limit_rates: list[float], kept: list[int]
) -> None:
    rounds: list[Round] = [
        {"limit": Sample(1 / rate), "ours": Sample(float(at))}
        for at, rate in enumerate(limit_rates)
    ]
    assert [one["ours"].seconds for one in steady_rounds(rounds, "limit")] == kept
    assert steady_rounds(rounds, None) == rounds


def test_a_dropped_round_is_run_again() -> None:
    clock = Clock()
    limit = Contender(name="limit", act=clock.takes(1, 9, 1, 1))
    result = run(clock, Contender(name="ours", act=clock.takes(2)), limit, limit="limit")
    assert (len(result.rounds), result.dropped) == (3, 1)
    assert all(one["limit"].seconds == 1 for one in result.rounds)


def test_a_limit_that_never_holds_still_ends_all_the_same() -> None:
    clock = Clock()
    limit = Contender(name="limit", act=clock.takes(*(10.0**step for step in range(40))))
    result = run(clock, limit, limit="limit")
    assert len(result.rounds) + result.dropped == 9
    assert len(result.rounds) <= 1


def test_each_round_begins_with_another_contender() -> None:
    order: list[str] = []

    def noted(name: str) -> Contender:
        return Contender(name=name, act=lambda _: order.append(name))

    run(Clock(), noted("a"), noted("b"), noted("c"), rounds=4)
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b", "a", "b", "c"]


def test_only_the_act_is_timed_and_repeats_share_the_time() -> None:
    clock = Clock()
    given, taken = [], []

    def before() -> str:
        clock.now += 100
        return "given"

    def act(got: str) -> str:
        given.append(got)
        clock.now += 6
        return f"result {len(given)}"

    def after(result: str) -> Mapping[str, float]:
        clock.now += 100
        taken.append(result)
        return {"kept": 7}

    result = run(
        clock, Contender(name="a", before=before, act=act, after=after, repeats=3), rounds=1
    )
    (sample,) = (one["a"] for one in result.rounds)
    assert sample == Sample(6.0, {"kept": 7})
    assert given == ["given"] * 3 and taken == ["result 3"]


def test_what_an_act_left_is_removed_when_it_fails() -> None:
    removed = []

    def act(_given: object) -> None:
        raise OSError("full")

    contender = Contender(name="a", act=act, after=removed.append)
    with pytest.raises(OSError, match="full"):
        run(Clock(), contender)
    assert removed == [None]


@pytest.mark.parametrize("rounds", [0, -1])
def test_no_round_is_refused(rounds: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        run(Clock(), Contender(name="a", act=lambda _: None), rounds=rounds)


@pytest.mark.parametrize(("at_least", "met"), [(1.9, True), (2.0, True), (2.1, False)])
def test_speed_targets_are_judged_by_the_median(at_least: float, met: bool) -> None:
    rounds = rounds_of(ours=[1, 1, 1], peer=[1, 2, 9])
    assert is_met(rounds, SpeedTarget(of="ours", against="peer", at_least=at_least)) is met


@pytest.mark.parametrize(("at_most", "met"), [(4, False), (5, True), (6, True)])
def test_bounds_are_judged_by_the_median(at_most: float, met: bool) -> None:
    rounds: list[Round] = [{"ours": Sample(1, {"bytes": value})} for value in (5, 100, 1)]
    assert figure(rounds, of="ours", name="bytes") == Spread(5, 1, 100)
    assert is_met(rounds, Bound(of="ours", figure="bytes", at_most=at_most)) is met


@pytest.mark.parametrize(("within", "met"), [(0.19, False), (0.2, True), (0.3, True)])
def test_figures_that_are_to_be_alike_are_compared_within_a_round(within: float, met: bool) -> None:
    figures = [(10, 12, 11), (20, 20, 20), (100, 50, 75)]
    rounds: list[Round] = [
        {name: Sample(1, {"bytes": value}) for name, value in zip("abc", held, strict=True)}
        for held in figures
    ]
    assert excess(rounds, of="abc", name="bytes") == Spread(pytest.approx(0.2), 0, 1)
    assert is_met(rounds, Alike(of=("a", "b"), figure="bytes", within=within + 1e-9)) is met
