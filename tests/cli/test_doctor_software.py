"""The table of known faults, row by row, and extensions built for another torch."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from overspill.cli.doctor.measure import PACKAGES, measure_versions
from overspill.cli.doctor.software import FAULTS, LEAST_VERSIONS, software_findings

ROOT = Path(__file__).parents[2]
TORCH, PYG = "2.13.0+cpu", "2.8.1"
WHOLE = {"torch": TORCH, "torch_geometric": PYG, "pyg_lib": "0.6.0+pt213cpu"}


def found(**versions: str | None) -> list[str]:
    """Severity and first words of what is found with these versions."""
    return [
        f"{one.severity}: {one.measured}: {one.why}"
        for one in software_findings({**WHOLE, **versions})
    ]


def test_what_is_current_has_no_fault() -> None:
    assert found() == []
    assert found(torch_geometric=None, pyg_lib=None) == []


# Versions, how many findings they have, and words of one of them.
ROWS = [
    ({"torch": "2.12.1+cu128"}, 1, "problem: torch 2.12.1+cu128: Overspill needs torch 2.13"),
    ({"torch": "2.10.0a0+git1234"}, 1, "Overspill needs torch"),
    ({"torch": "2.13"}, 0, ""),
    ({"torch": "2.14"}, 0, ""),
    ({"torch": "3.0.0"}, 0, ""),
    ({"torch_geometric": "2.6.1"}, 1, "overspill.pyg needs PyG 2.7"),
    ({"torch_geometric": "2.7"}, 0, ""),
    ({"torch_geometric": "2.6.1", "torch": "2.5.1"}, 2, "overspill.pyg needs"),
    ({"pyg_lib": None}, 1, "raises ImportError"),
    ({"pyg_lib": None, "torch_sparse": "0.6.18"}, 0, ""),
    ({"ogb": "1.3.6"}, 1, "problem: ogb 1.3.6 with torch 2.13.0+cpu: ogb's PyG datasets"),
    ({"ogb": "1.3.7"}, 0, ""),
    ({"torch": "development"}, 0, ""),
]


@pytest.mark.parametrize(("versions", "count", "words"), ROWS)
def test_rows(versions: dict[str, str | None], count: int, words: str) -> None:
    # An extension of no build tells nothing of the torch that it was built for.
    told = found(**{"pyg_lib": "0.6.0", **versions})
    assert len(told) == count, told
    assert words in "\n".join(told)


@pytest.mark.parametrize(
    ("torch", "extension", "wrong"),
    [
        ("2.13.0+cpu", "0.6.0+pt213cpu", False),
        ("2.13.1+cpu", "0.6.0+pt213cpu", False),  # one wheel serves the patches of a version
        ("2.13.0+cu128", "0.6.0+pt213cpu", False),
        ("2.13.0", "0.6.0+pt213cu128", False),
        ("2.13.0+cpu", "0.6.0+pt213cu128", True),
        ("2.13.0+cpu", "0.4.0+pt24cpu", True),
        ("2.4.1+cpu", "0.4.0+pt24cpu", False),
        ("2.0.1+cpu", "0.3.0+pt20cpu", False),
        ("2.10.0+cpu", "0.6.0+pt21cpu", True),
        ("1.13.1+cpu", "0.2.0+pt113cpu", False),
        ("2.13.0+cpu", "0.6.0", False),
    ],
)
def test_extensions_belong_to_a_torch(torch: str, extension: str, wrong: bool) -> None:
    told = [line for line in found(torch=torch, pyg_lib=extension) if "built for" in line]
    assert bool(told) is wrong


def test_foreign_extensions_are_told_together_with_where_to_get_the_right_ones() -> None:
    versions = {**WHOLE, "pyg_lib": "0.4.0+pt24cpu", "torch_sparse": "0.6.18+pt24cpu"}
    (finding,) = software_findings(versions)
    assert finding.severity == "problem"
    assert finding.measured == (
        "pyg_lib 0.4.0+pt24cpu, torch_sparse 0.6.18+pt24cpu with torch 2.13.0+cpu"
    )
    assert finding.remedy.text == (
        "pip install --force-reinstall --no-deps pyg_lib torch_sparse "
        "-f https://data.pyg.org/whl/torch-2.13.0+cpu.html"
    )


def test_every_row_has_a_source_and_speaks_of_packages_that_are_looked_for() -> None:
    for fault in FAULTS:
        assert fault.sources and fault.remedy.text and fault.what.endswith(".")
        assert {one.package for one in fault.where} | set(fault.without) <= set(PACKAGES)


def test_the_rows_are_those_of_the_versions_that_may_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    told = [*project["dependencies"], *project["optional-dependencies"]["pyg"]]
    bounds = dict(one.split(">=") for one in told)
    assert {name: bounds[name] for name in LEAST_VERSIONS} == LEAST_VERSIONS
    too_old = {one.where[0].package for one in FAULTS if "own requirements" in one.sources[0]}
    assert too_old == set(LEAST_VERSIONS)
    for fault in FAULTS:
        if "own requirements" in fault.sources[0]:
            continue
        for one in fault.where:  # a row that holds for no version that is taken is dead
            bound = LEAST_VERSIONS.get(one.package)
            assert bound is None or one.before is None or numbers(one.before) > numbers(bound)


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_this_installation_is_read_without_an_import() -> None:
    versions = measure_versions()
    assert versions["torch"] and versions["torch_geometric"]
    assert tuple(versions) == PACKAGES
