from __future__ import annotations

import math

import pytest

from benchmarks.harness import Case, Contender, Result, Sample, SpeedTarget, Spread, narrowed
from benchmarks.scaling import Point, fitted, holds_points, series_across, series_within
from made_results import made_result, made_series


def points(*held: tuple[int, float]) -> list[Point]:
    return [Point(size, Spread(seconds, seconds, seconds)) for size, seconds in held]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(exponent: float) -> None:
    fit = fitted(made_series(exponent).points)
    assert fit.exponent == pytest.approx(exponent, abs=1e-12)
    assert fit.steps == pytest.approx([exponent, exponent], abs=1e-12)
    assert fit.off == pytest.approx(1.0)


def test_what_is_no_power_law_shows_in_the_steps_and_the_residual() -> None:
    fit = fitted(points((1, 1.0), (10, 1.0), (100, 100.0)))
    assert fit.exponent == pytest.approx(1.0) and fit.steps == pytest.approx([0.0, 2.0])
    # Of a line of slope 1 through the mean, logarithms 0, 0, 2: the middle is off by 2/3.
    assert fit.off == pytest.approx(10 ** (2 / 3))


def test_least_squares_agree_with_numpy() -> None:
    held = points((3, 0.2), (17, 0.9), (90, 7.0), (400, 11.0))
    x = [math.log(point.size_bytes) for point in held]
    y = [math.log(point.seconds.median) for point in held]
    np = pytest.importorskip("numpy")
    slope, start = np.polyfit(x, y, 1)
    fit = fitted(held)
    assert fit.exponent == pytest.approx(slope)
    assert fit.off == pytest.approx(np.exp(np.abs(np.array(y) - slope * np.array(x) - start).max()))


@pytest.mark.parametrize("held", [[], points((5, 1.0)), points((5, 1.0), (5, 2.0))])
def test_one_size_is_refused(held: list[Point]) -> None:
    with pytest.raises(ValueError, match="two sizes or more"):
        fitted(held)


def run(names: list[str], seconds: float, *, rounds: int = 2) -> Result:
    case = Case(name=f"case of {seconds}", contenders=[], baseline=names[0])
    held = [{name: Sample(seconds * (at + 1)) for name in names} for at in range(rounds)]
    contenders = [Contender(name=name, act=print) for name in names]
    return Result(Case(name=case.name, contenders=contenders, baseline=names[0]), held, 0)


def test_series_across_sizes_leave_out_who_was_measured_once() -> None:
    runs = [(1 << 20, [run(["ours"], 1.0)]), (1 << 22, [run(["ours", "peer"], 4.0)])]
    (series,) = series_across(runs)
    assert (series.case, series.way) == ("case of 4.0", "ours")
    assert [point.size_bytes for point in series.points] == [1 << 20, 1 << 22]
    assert series.points[1].seconds == Spread(6.0, 4.0, 8.0)


def test_a_case_that_did_not_run_at_a_size_leaves_that_point_out() -> None:
    sizes = [(1, [run(["ours"], 1.0, rounds=0)]), (4, [run(["ours"], 1.0)])]
    assert list(series_across(sizes)) == []
    (series,) = series_across([*sizes, (16, [run(["ours"], 3.0)])])
    assert [point.size_bytes for point in series.points] == [4, 16]


def test_a_case_may_hold_the_sizes_itself() -> None:
    contenders = [
        Contender(name=f"ours {size}", act=print, point=("ours", size)) for size in (64, 4)
    ]
    contenders.append(Contender(name="bare", act=print))
    case = Case(name="sending", contenders=contenders, baseline="bare")
    result = Result(case, [{one.name: Sample(1.0) for one in contenders}], 0)
    assert holds_points(case) and not holds_points(made_result().case)
    (series,) = series_within(result)
    assert (series.case, series.way) == ("sending", "ours")
    assert [point.size_bytes for point in series.points] == [4, 64]
    assert series_within(Result(case, [], 3)) == []


def test_at_sizes_besides_peers_are_left_out() -> None:
    peers = [Contender(name=name, act=print) for name in ("baseline", "ours", "peer", "device")]
    target = SpeedTarget(of="ours", against="peer", at_least=1)
    case = Case(
        name="case", contenders=peers, baseline="baseline", limit="device", targets=[target]
    )
    held = narrowed(case)
    assert [one.name for one in held.contenders] == ["baseline", "ours", "device"]
    assert held.targets == () and held.limit == "device"
