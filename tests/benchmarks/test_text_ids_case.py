"""The benchmark of text ids at a tiny size, and that what it makes is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import text_ids
from benchmarks.harness import figure, run_case
from benchmarks.text_ids_job import MadeStrings


@pytest.mark.requires("memory_cgroup")
def test_it_runs_in_a_group_and_leaves_nothing(tmp_path: Path) -> None:
    with text_ids.opened(tmp_path, 100 << 10) as [case]:
        result = run_case(case, rounds=1)
    assert case.name.startswith("6400 text ids in a group of 1024 MiB")
    assert figure(result.rounds, of=text_ids.OURS, name="microseconds an id").low > 0
    assert figure(result.rounds, of=text_ids.OURS, name="peak anonymous MiB").low > 10
    assert list(tmp_path.iterdir()) == []


def test_the_strings_are_distinct_and_of_every_length() -> None:
    made = MadeStrings(9_000, 1000)
    found, alive = [], []
    for strings in made.chunks():
        alive = [*alive, strings][-3:]
        found += [strings.text(place) for place in range(len(strings))]
        first = len(found) - sum(map(len, alive))
        assert alive[0].text(5) == found[first + 5]  # valid until the third after it
    assert len(set(found)) == len(found) == 9_000
    assert {len(text) for text in found} == set(range(12, 21))
    assert made.seconds > 0
