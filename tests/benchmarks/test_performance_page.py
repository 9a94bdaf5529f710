"""The page and its plots, from made-up results; and that the committed ones are not stale."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import page as module
from benchmarks.harness import Result, is_met
from benchmarks.page import Held, held_in, rendered_page, rendered_plots, write_page
from benchmarks.plots import scaling_plot, speeds_plot
from benchmarks.stored import Measured, to_plain, write_json
from benchmarks.suite import ENTRIES
from benchmarks.tables import case_table, scaling_table
from made_results import LIMIT, OURS, made, made_result, made_series

SVG = "{http://www.w3.org/2000/svg}"


def held(**full: Measured) -> Held:
    return Held(suite={"spill": made()}, shared=made(results=[], series=[]), full=full)


def test_the_committed_page_is_what_the_committed_results_give() -> None:
    kept = held_in(module.RESULTS)
    template = module.TEMPLATE.read_text(encoding="utf-8")
    assert module.PAGE.read_text(encoding="utf-8") == rendered_page(template, kept), (
        "run python -m benchmarks.page"
    )
    drawn = {path.name: path.read_text(encoding="utf-8") for path in module.PLOTS.glob("*.svg")}
    assert drawn == rendered_plots(kept)


def test_the_committed_page_tells_every_target_that_is_missed() -> None:
    kept = held_in(module.RESULTS)
    text = module.PAGE.read_text(encoding="utf-8")
    results = [
        result
        for part in (kept.suite, kept.full)
        for one in part.values()
        for result in one.results
        if result.rounds
    ]
    missed = sum(
        not is_met(result.rounds, target) for result in results for target in result.case.targets
    )
    said = re.search(r"Missed: (\d+) of", text)
    assert (int(said[1]) if said else 0) == missed
    assert text.count("**missed**") >= missed


def test_the_committed_results_are_of_the_whole_suite_or_there_are_none() -> None:
    assert set(held_in(module.RESULTS).suite) in (set(), {entry.name for entry in ENTRIES})


def test_a_row_stands_beside_the_baseline_the_limit_and_its_target() -> None:
    lines = case_table(made_result(at_least=5))
    assert lines[0] == "**copying & more**, 3 rounds, 1 dropped"
    head, _rule, ours, peer, device = lines[2:7]
    assert head == "| way | seconds | GiB/s | speed / overspill | speed / device | bytes | target |"
    assert ours.startswith(
        "| overspill | 1 | 1 | 1 | 0.50 (0.50 to 0.50) | 9 | **missed**: 3 (2 to"
    )
    assert "at least 5; met: bytes 9, at most 10; **missed**: bytes apart by 0.333" in ours
    assert peer.startswith(
        r"| peer \| other | 3 (2 to 4) | 0.333 | 0.33 (0.25 to 0.50) | 0.17 (0.12 to 0.25) | 12 |"
    )
    assert device == "| device | 0.5 |  | 2.00 (2.00 to 2.00) | 1 |  |  |"
    assert "- peer | other: then fsync" in lines and "- another: not installed" in lines


def test_a_case_of_which_no_round_counts_says_so() -> None:
    (line, _) = case_table(Result(made_result().case, [], 15))
    assert "never held still, 15 rounds dropped" in line


def test_exponents_stand_beside_their_steps() -> None:
    row = scaling_table([made_series(0.5)])[2]
    assert row == (
        "| copying & more | overspill | 0.50 | 0.50, 0.50 | 1.00 times "
        "| 1.0 MiB, 4.0 MiB, 16.0 MiB |"
    )


def test_the_page_has_the_machine_the_tables_and_what_is_missed() -> None:
    template = "{{ missed }}\n{{ machine }}\n## One {#spill}\n{{ spill }}\n{{ load }}\n"
    text = rendered_page(template, held())
    assert 'warning "Missed: 1 of 3 targets"' in text
    assert "    - [spill](#spill): copying & more: overspill; peer | other: bytes apart" in text
    assert "| read-ahead KiB | not told |" in text
    assert "1 December 2026, commit abc123, with changes to it, 1 minutes." in text
    assert "`python -m benchmarks.spill --rounds 3`" in text
    assert "![Speeds of spill](assets/performance/spill.svg)" in text
    assert "No results are kept of `python -m benchmarks.load`." in text
    assert text == rendered_page(template, held())


def test_where_all_is_met_nothing_is_said_to_be_missed() -> None:
    result = made_result()
    result = replace(result, case=replace(result.case, targets=result.case.targets[:2]))
    kept = replace(held(), suite={"spill": made(results=[result])})
    assert rendered_page("{{ missed }}", kept) == "All 2 targets are met.\n"


def test_results_at_full_size_take_the_place_of_figures_by_hand() -> None:
    template = "{{ spill }}\n{{ unless spill }}\nby hand\n{{ end }}\nafter\n"
    assert "by hand" in rendered_page(template, held())
    same = made(machine={"cpus": 2, "load": 7, "read-ahead KiB": None}, date="2026-12-02")
    text = rendered_page(template, held(spill=same))
    assert "by hand" not in text and text.endswith("after\n")
    assert "#### At full size {#spill-full}" in text
    assert "2 December 2026, commit abc123, with changes to it; the machine above." in text
    other = rendered_page(template, held(spill=made(machine={"cpus": 64}, commit=None)))
    assert "commit not known; cpus 64." in other
    missed = rendered_page("{{ missed }}", held(spill=same))
    assert "- [spill](#spill), at full size: copying" in missed and "2 of 6 targets" in missed


def test_one_that_could_not_run_says_why() -> None:
    kept = replace(held(), suite={"spill": Measured(failed="no disk; remedy: another")})
    text = rendered_page("{{ spill }}", kept)
    assert "could not run" in text and "    no disk; remedy: another" in text


def test_results_are_read_from_a_directory_and_the_page_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert held_in(tmp_path).suite == {}
    one = to_plain(made())
    shared = {name: one.pop(name) for name in ("date", "commit", "machine")}
    write_json(tmp_path / "suite.json", {**shared, "seconds": 60, "entries": {"spill": one}})
    write_json(tmp_path / "gather.json", to_plain(made(date="2026-11-30")))
    (tmp_path / "loader_endurance.json").write_text("[]")  # no cases: it has no tables
    kept = held_in(tmp_path)
    assert list(kept.full) == ["gather"]
    assert kept.suite["spill"].date == "2026-12-01" and kept.full["gather"].date == "2026-11-30"
    template, page, plots = (tmp_path / name for name in ("template", "page.md", "plots"))
    template.write_text("{{ spill }}\n")
    monkeypatch.setattr(module, "TEMPLATE", template)
    plots.mkdir()
    (plots / "gone.svg").touch()
    write_page(kept, page=page, plots=plots)
    assert page.read_text() == rendered_page("{{ spill }}", kept)
    assert {path.name for path in plots.iterdir()} == {"spill.svg", "spill-scaling.svg"}


def test_a_plot_of_speeds_holds_each_contender_at_its_ratio() -> None:
    root = ElementTree.fromstring(speeds_plot([made_result()]))
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert {"copying & more", OURS, "peer | other", LIMIT, "0.33 (0.25 to 0.50)"} <= set(texts)
    kinds = {one.get("class"): one for one in root.iter(f"{SVG}circle")}
    assert set(kinds) == {"ours", "peer", "limit"}
    across = {kind: float(str(one.get("cx"))) for kind, one in kinds.items()}
    assert across["peer"] < across["ours"] < across["limit"]
    # Logarithms: a third lies as far to the left of one as three to the right.
    step = (across["limit"] - across["ours"]) / 0.30103
    assert across["ours"] - across["peer"] == pytest.approx(0.47712 * step, abs=0.3)
    assert "prefers-color-scheme: dark" in str(root.find(f"{SVG}style").text)  # type: ignore[union-attr]
    assert speeds_plot([Result(made_result().case, [], 3)]) == ""


def test_a_plot_of_scaling_holds_each_series_and_its_exponent() -> None:
    other = replace(made_series(1.0), way="device")
    text = scaling_plot([made_series(0.5), other])
    root = ElementTree.fromstring(text)
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert {"overspill: 0.50", "device: 1.00", "1.0 MiB", "16.0 MiB"} <= set(texts)
    lines = [one.get("points", "").split() for one in root.iter(f"{SVG}polyline")]
    assert [len(line) for line in lines] == [3, 3]
    heights = [[float(spot.split(",")[1]) for spot in line] for line in lines]
    assert heights[0][0] == heights[1][0] > heights[0][2] > heights[1][2]
    assert scaling_plot([made_series(0.5), other]) == text and scaling_plot([]) == ""
