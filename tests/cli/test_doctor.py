"""The verb: on one screen, as JSON, with the status that tells whether something is wrong."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from doctor_machines import GIB, MIB, WELL, machine
from rich.console import Console
from typer.testing import CliRunner

from overspill.cli.doctor import measure as measuring
from overspill.cli.doctor.diagnosis import diagnose
from overspill.cli.doctor.finding import Finding, Remedy
from overspill.cli.doctor.machine import Machine
from overspill.cli.doctor.show import as_json, print_findings
from overspill.cli.doctor.verb import doctor
from overspill.linux.cgroups import TaskUse

# A default container with an old torch: what the screen is for.
ILL = machine(
    memory={"limit_bytes": GIB, "available_bytes": 300 * MIB, "anon_bytes": 700 * MIB, "kills": 2},
    shm={"total_bytes": 64 * MIB, "free_bytes": 64 * MIB},
    spill_dir={"kind": "overlay", "read_ahead_bytes": 8 * MIB},
    surroundings="docker",
    limits={"open_files": 1024},
    processors={"quota": 2.0},
    fetch_method="fadvise",
    versions={"python": "3.11.9", "torch": "2.9.0", "torch_geometric": "2.5.0"},
)


# The verb alone: how the command's frame tells errors is tested with the frame.
app = typer.Typer()
app.command()(doctor)


def shown(held: Machine, width: int, *, everything: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    print_findings(console, held, diagnose(held), everything=everything)
    return out.getvalue().splitlines()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``run(machine, *arguments)``: the verb on a machine that is made up."""

    def invoke(held: Machine, *arguments: str) -> Any:
        monkeypatch.setattr(measuring, "measure", lambda _: held)
        return CliRunner().invoke(app, list(arguments))

    return invoke


def test_the_status_tells_problems_from_advice(run: Any) -> None:
    well = run(WELL)
    assert well.exit_code == 0 and well.stdout.endswith("nothing is wrong\n")
    advised = run(machine(processors={"quota": 2.0}))
    assert advised.exit_code == 0 and "no problem, 1 piece of advice" in advised.stdout
    ill = run(machine(limits={"overcommit": 2}))
    assert ill.exit_code == 1 and "1 problem\n" in ill.stdout


def test_json(run: Any) -> None:
    done = run(ILL, "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    findings = diagnose(ILL)
    assert told["problems"] + told["advice"] == len(told["findings"]) == len(findings)
    assert told["problems"] == sum(one["severity"] == "problem" for one in told["findings"])
    shm = next(one for one in told["findings"] if one["check"] == "shm")
    assert shm["remedy"] == "docker run --shm-size=1g IMAGE" and shm["remedy_kind"] == "shell"
    assert set(shm) == {
        *("check", "severity", "measured", "why", "remedy", "remedy_kind", "otherwise", "sources")
    }
    assert told["machine"]["memory"]["limit_bytes"] == GIB
    assert told["machine"]["settings"]["spill_dir"] == "/spill"
    assert json.loads(run(machine(settings=None), "--json").stdout)["machine"]["settings"] is None
    assert shm["otherwise"] == "export OVERSPILL_SPILL_BATCHES=1"
    for one in told["findings"]:
        if one["check"] == "software":
            assert one.pop("otherwise") is None and all(one.values())


def test_this_machine_is_looked_at(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--json", "--dir", str(tmp_path)])
    told = json.loads(done.stdout)
    assert done.exit_code == (1 if told["problems"] else 0)
    assert told["machine"]["spill_dir"]["path"] == str(tmp_path)
    assert told["machine"]["versions"]["torch"]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_a_problem_where_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "no such"
    done = CliRunner().invoke(app, ["--json", "--dir", str(place)])
    assert done.exit_code == 1 and not place.exists()
    told = {one["measured"]: one["remedy"] for one in json.loads(done.stdout)["findings"]}
    assert told[f"{place} does not exist"] == f"mkdir -p '{place}'"
    # The first run makes the one of the settings.
    monkeypatch.setenv("OVERSPILL_DIR", str(place))
    assert "does not exist" not in CliRunner().invoke(app, ["--json"]).stdout


@pytest.mark.parametrize("width", [80, 100])
def test_one_screen(width: int) -> None:
    lines = shown(ILL, width)
    assert 24 <= len(lines) <= 40
    assert max(map(len, lines)) <= width
    assert re.search(r"\d not shown: overspill doctor --all", lines[-1])
    whole = shown(ILL, width, everything=True)
    assert "not shown" not in whole[-1]
    text = " ".join(" ".join(whole).split())
    for finding in diagnose(ILL):
        assert finding.measured in text


def test_problems_are_shown_on_however_many_lines() -> None:
    out = io.StringIO()
    many = [
        Finding(
            check="x", severity="problem", measured=f"number {n}", why="for a", remedy=Remedy("y")
        )
        for n in range(20)
    ]
    print_findings(Console(file=out, width=80), WELL, many)
    assert all(f"problem: number {n}\n" in out.getvalue() for n in range(20))
    assert out.getvalue().endswith("20 problems\n")


def test_at_40_columns_nothing_is_cut() -> None:
    lines = shown(ILL, 40, everything=True)
    for line in lines:
        # Longer only where a single word is: a path, or an address.
        assert len(line) <= 40 or len(line.split()) <= 3, line
        assert not re.search(r"\d$", line) or not re.match(
            r"\s*(B|[KMG]iB)\b", lines[lines.index(line) + 1]
        )
    text = " ".join(" ".join(lines).split())
    for finding in diagnose(ILL):
        assert finding.measured in text and finding.why in text


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize(
    "text",
    [
        "sudo setpriv --reuid=$(id -u) --regid=$(id -g) --init-groups --inh-caps=+sys_nice X",
        "export OVERSPILL_DIR='/a directory/with  spaces in it, and longer than a line of forty'",
        'docker run -it --shm-size=8g -v "$PWD":/app -w /app python:3.11 bash',
        "sync",
    ],
)
def test_a_command_can_be_pasted_from_its_lines(text: str, width: int) -> None:
    out = io.StringIO()
    finding = Finding(check="x", severity="advice", measured="m", why="w", remedy=Remedy(text))
    print_findings(Console(file=out, width=width), WELL, [finding], everything=True)
    pasted = out.getvalue().partition("do: ")[2].partition("\n\n")[0]
    assert shlex.split(pasted.replace("\\\n", " ")) == shlex.split(text)


def test_a_pod_s_lines_stay_as_they_are() -> None:
    held = machine(shm={"total_bytes": 64 * MIB}, surroundings="kubernetes")
    lines = shown(held, 100)
    start = next(n for n, line in enumerate(lines) if line.startswith("  pod: "))
    assert lines[start : start + 2] == [
        "  pod: volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]",
        "    volumeMounts: [{name: shm, mountPath: /dev/shm}]",
    ]


def test_facts_of_a_bare_machine() -> None:
    held = machine(
        memory={"limit_bytes": None, "available_bytes": None},
        shm={"total_bytes": None},
        limits={"open_files": None},
        spill_dir={"exists": False, "reserves": None, "read_ahead_bytes": None},
    )
    text = " ".join(" ".join(shown(held, 80)).split())
    assert "unknown can be had of 64.0 GiB, no limit" in text
    assert "/dev/shm missing" in text
    assert "unlimited open files" in text
    assert "/spill (OVERSPILL_DIR, to be made): ext4, 600.0 GiB free of 1000.0 GiB" in text
    assert "torch 2.13.0+cpu, torch_geometric none" in text


def test_a_limit_on_processes_is_told_where_there_is_one() -> None:
    limited = machine(tasks=TaskUse(path="/g", count=61, limit=2048))
    assert "mappings, 61 of 2,048 processes and threads" in " ".join(shown(limited, 100))
    assert "threads" not in " ".join(shown(WELL, 100))
    assert as_json(limited, [])["machine"]["tasks"] == {"path": "/g", "count": 61, "limit": 2048}


def test_a_name_cannot_command_the_terminal() -> None:
    lines = shown(machine(spill_dir={"path": "/a\x1b[31m\udcff\n", "spare_bytes": 0}), 80)
    text = "\n".join(lines)
    assert "\x1b" not in text and "/a\\x1b[31m\\udcff\\n (OVERSPILL_DIR)" in text
    text.encode()
