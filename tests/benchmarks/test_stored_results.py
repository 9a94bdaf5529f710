from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import stored
from benchmarks.harness import Result, is_met
from benchmarks.stored import commit_of_project, from_plain, read_json, to_plain, write_json
from made_results import made, made_result


def test_results_come_back_as_they_were_but_cannot_be_run(tmp_path: Path) -> None:
    path = tmp_path / "new" / "held.json"
    write_json(path, to_plain(made()))
    held = from_plain(read_json(path))
    (result,) = held.results
    before = made_result()
    assert result.rounds == before.rounds and result.dropped == 1
    for name in ("name", "baseline", "limit", "targets", "absent"):
        assert getattr(result.case, name) == getattr(before.case, name)
    assert [(one.name, one.nbytes, one.note) for one in result.case.contenders] == [
        (one.name, one.nbytes, one.note) for one in before.case.contenders
    ]
    judged = [is_met(result.rounds, target) for target in result.case.targets]
    assert judged == [True, True, False]
    assert held.series == made().series and held.machine == made().machine
    with pytest.raises(RuntimeError, match="cannot be run"):
        result.case.contenders[0].act(None)


def test_a_case_without_rounds_and_a_failure_are_kept() -> None:
    empty = Result(made_result().case, [], 15)
    held = from_plain(to_plain(made(results=[empty], series=[], failed="no disk; remedy: one")))
    assert held.results[0].rounds == [] and held.results[0].dropped == 15
    assert held.failed == "no disk; remedy: one"


def test_figures_have_six_digits_and_counts_all_of_theirs() -> None:
    text = json.dumps(to_plain(made(seconds=1 / 3)))
    assert '"seconds": 0.333333' in text
    assert stored._rounded(12345678901.0) == 12345678901.0


def test_the_commit_is_told_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of_project() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of_project() is None
