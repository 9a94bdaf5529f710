"""``overspill cluster plan``: what is given, measured and assumed; as text and as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overspill.cluster.planning import probe
from overspill.cluster.planning.rates import ASSUMED
from prompt import as_json, require_narrow, typed

GRAPH = ("cluster", "plan", "--nodes", "1e9", "--edges", "1e10", "--feature-bytes", 512)
BIG = (*GRAPH, "--machines", 16, "--memory", "64GiB")


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that were measured; each time in no time."""
    places: list[Path] = []

    def measure_rates(place: Path, **_: Any) -> Any:
        places.append(place)
        return ASSUMED.having("measured", **{name: 7.0 for name in probe.MEASURED})

    monkeypatch.setattr(probe, "measure_rates", measure_rates)
    return places


def test_what_is_given_comes_before_what_is_measured(probed: list[Path], tmp_path: Path) -> None:
    given = (
        "--disk-rate",
        "2GB",
        "--network-rate",
        "3GB",
        "--round-trip",
        2,
        "--build-rate",
        "1e7",
    )
    found = as_json(*BIG, *given, "--dir", tmp_path)
    rates = found["rates"]
    assert probed == [tmp_path]
    assert rates["disk_read"] == rates["disk_write"] == {"value": 2e9, "source": "given"}
    assert rates["network"] == {"value": 3e9, "source": "given"}
    assert rates["round_trip"] == {"value": 0.002, "source": "given"}
    assert rates["build_edges"] == {"value": 1e7, "source": "given"}
    assert rates["sample_edges"] == {"value": 7.0, "source": "measured"}
    assert rates["transport"]["source"] == "assumed"
    assert found["disk"]["dataset_bytes"] == 35_000_012_296
    assert found["work"]["machines"] == 16 and found["findings"] == []
    assert {"stage", "least_seconds", "most_seconds", "bottleneck"} <= set(found["build"][1])


def test_nothing_is_measured_where_that_is_not_wanted(probed: list[Path]) -> None:
    told = typed(*BIG, "--no-probe", "--cores", 8)
    assert not probed and told.stderr == ""
    lines = told.stdout.splitlines()
    assert "rates that were measured" not in lines
    at = lines.index("rates that were given")
    assert lines[at + 1].split() == ["processors", "8"]
    assert lines[at + 2] == "rates that were assumed"
    parts = next(line for line in lines if line.startswith("  its parts"))
    assert parts.split("  ")[-1] == "stay" and "32.6 GiB" in parts
    assert any(line.startswith("  all of it") for line in lines)


def test_options_reach_the_model() -> None:
    options = {
        "--parts": 32,
        "--input-edge-bytes": 8,
        "--build-memory": "2GiB",
        "--num-neighbors": "5,-1",
        "--batch-size": 10,
        "--seeds": "1e6",
        "--workers": 3,
        "--local-share": 0.5,
    }
    given = [one for pair in options.items() for one in pair]
    work = as_json(*BIG, *given, "--shared-disk", "--rows-everywhere", "--no-probe")["work"]
    assert {name: work[name] for name in ("parts", "batch_size", "seeds", "workers")} == {
        "parts": 32,
        "batch_size": 10,
        "seeds": 10**6,
        "workers": 3,
    }
    assert work["num_neighbors"] == [5, -1] and work["local_share"] == 0.5
    assert work["build_memory_bytes"] == 2 << 30 and work["input_edge_bytes"] == 8
    assert work["shared_disk"] and work["rows_everywhere"]


@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_terminal(columns: int) -> None:
    require_narrow(typed(*BIG, "--no-probe", columns=columns).stdout, columns)


def test_what_does_not_fit_is_told() -> None:
    told = typed(*GRAPH, "--machines", 4, "--parts", 2, "--memory", "1GiB", "--no-probe").stdout
    assert "! serving wants" in told and "! 2 of 4 machines have no part" in told


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--nodes", "many"), 2, "'many' is no number"),
        (("--nodes", "1.5"), 1, "nodes=1.5 is no whole number"),
        (("--num-neighbors", "15;10"), 2, "'15;10' is not like 15,10,5"),
        (("--disk-rate", "fast"), 2, "not a size"),
        (("--network-rate", "3"), 1, "network=3 is 3 B a second"),
        (("--seeds", "1.5"), 1, "seeds=1.5 is no whole number"),
        (("--seeds", "inf"), 1, "seeds=inf is no whole number"),
        (("--memory", "0"), 1, "memory=0 is nothing"),
        (("--round-trip", "0"), 1, "round_trip=0.0 is no rate"),
    ],
)
def test_bad_options(options: tuple[str, str], code: int, told: str) -> None:
    assert told in typed(*BIG, "--no-probe", *options, code=code).stderr
