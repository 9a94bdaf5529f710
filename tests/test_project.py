"""The project's own machinery: set up once, and only again when its inputs change."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def is_set_up(project: Path) -> bool:
    """Whether make would run nothing for ``make setup``."""
    done = subprocess.run(["make", "--question", "setup"], cwd=project, capture_output=True)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_a_second_run_installs_nothing(project: Path) -> None:
    assert not is_set_up(project)
    (project / ".venv").mkdir()
    (project / ".venv" / ".installed").touch()
    assert is_set_up(project)


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_input_sets_up_again(project: Path, name: str) -> None:
    (project / ".venv").mkdir()
    stamp = project / ".venv" / ".installed"
    stamp.touch()
    later = stamp.stat().st_mtime_ns + 10**9
    os.utime(project / name, ns=(later, later))
    assert not is_set_up(project)


def test_every_installed_version_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    assert lines and all(line.count("==") == 1 for line in lines)
    assert "torch==2.13.0" in lines


def test_the_pipeline_demands_every_capability() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "OVERSPILL_REQUIRE_CAPABILITIES=1" in script
    assert all(f"make {goal}\n" in script for goal in ("check", "test"))


def planned(project: Path, goal: str) -> list[str]:
    """The commands that make would run for a goal."""
    # Without what a make around the tests was told.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", goal],
        cwd=project,
        env=outside,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace("\\\n", " ").splitlines()


def test_the_lane_of_newest_versions_takes_no_torch_but_a_cpu_build(project: Path) -> None:
    lines = planned(project, "test-newest")
    (checked,) = [i for i, line in enumerate(lines) if "torch.version.cuda is None" in line]
    (rest,) = [i for i, line in enumerate(lines) if "--upgrade-strategy eager" in line]
    assert checked < rest and "PIP_CONSTRAINT=.venv-newest/torch.txt" in lines[rest]
    assert "constraints.txt" not in lines[rest]
    assert "pytest" in lines[-1] and lines[-1].endswith(" tests")


def test_the_lane_of_newest_versions_looks_for_them_each_time(project: Path) -> None:
    (project / ".venv-newest" / "bin").mkdir(parents=True)
    (project / ".venv-newest" / "bin" / "pip").touch(mode=0o755)
    assert any("--upgrade-strategy eager" in line for line in planned(project, "test-newest"))


def test_no_python_is_claimed_but_the_one_that_is_run() -> None:
    """A lane for another one is what adds its line."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = "Programming Language :: Python :: "
    claimed = {line.removeprefix(name) for line in project["classifiers"] if line.startswith(name)}
    assert claimed == {project["requires-python"].removeprefix(">=")}
