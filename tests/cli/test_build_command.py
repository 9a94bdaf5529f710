"""``overspill build``: every option, the plan before the work, the summary after it."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.build.describe import BuildOptions
from overspill.build.spec import Duplicates, IdMode, Layout, NonFinite, Order, SelfLoops
from overspill.cli import build as verb
from overspill.cli.build import build
from overspill.cli.build_text import plan_lines
from overspill.cli.lines import wrapped
from overspill.graph.construct import build_dataset
from overspill.settings import child_environment
from overspill.storage.manifest import read_manifest
from prompt import as_json, require_narrow, typed

PLAN: dict[str, Any] = {
    "edges": 812_345_678,
    "edges_known": False,
    "files": 3,
    "input_bytes": 13 << 30,
    "passes": [
        {"phase": "partition", "buckets": 0},
        {"phase": "build rows", "buckets": 620},
        {"phase": "partition", "buckets": 0},
        {"phase": "build rows", "buckets": 620},
    ],
    "bucket_bytes": 2 << 20,
    "buckets": 5,
    "threads": 2,
    "projected_bytes": 131 << 20,
    "allowed_bytes": 512 << 20,
    "disk_bytes": 41 << 30,
    "least_disk_bytes": 30 << 30,
    "dataset_bytes": 18 << 30,
    "free_bytes": 60 << 30,
    "unknown": ["8 bytes a node of type node, whose number only the edges tell"],
}


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    np.save(tmp_path / "e.npy", np.random.default_rng(4).integers(0, 900, (2, 30_000)))
    return tmp_path / "e.npy"


def test_every_option_of_python_is_on_the_command_line() -> None:
    python = set(inspect.signature(build_dataset).parameters) - {"options"}
    python |= set(BuildOptions.__annotations__)
    mine = set(inspect.signature(build).parameters)
    assert python <= mine
    assert mine - python == {"fill", "plan_only", "as_json"}


@pytest.mark.parametrize(
    ("mine", "library"),
    [
        (verb._ID_MODES, IdMode),
        (verb._LAYOUTS, Layout),
        (verb._DUPLICATES, Duplicates),
        (verb._SELF_LOOPS, SelfLoops),
        (verb._NON_FINITE, NonFinite),
        (verb._ORDERS, Order),
    ],
)
def test_every_choice_is_the_library_s(mine: tuple[str, ...], library: Any) -> None:
    assert set(mine) == set(library.__args__)


NO_CHOICES = ["--ids=none", "--layout=csc,coo", "--duplicates=x", "--self-loops=x"]
NO_CHOICES += ["--non-finite=x", "--order=x", "--edge-axis=2", "--threads=0", "--num-nodes=x"]


@pytest.mark.parametrize("option", NO_CHOICES)
def test_a_choice_that_is_none_is_wrong_usage(tmp_path: Path, option: str) -> None:
    done = typed("build", "--edges", "e.csv", "--out", tmp_path / "o", option, code=2)
    assert option.split("=")[0] in done.stderr


def test_the_plan_of_a_large_build_in_words() -> None:
    text = "\n".join(wrapped(line, None) for line in plan_lines(PLAN))
    assert "3 files, 13.0 GiB, about 812.3M edges" in text
    assert "4: partition (2 times), build rows (2 times)" in text
    assert "5 of 2.0 MiB at a time, about 1,240 in all; 2 threads" in text
    assert "needs 131.0 MiB, 512.0 MiB allowed" in text
    assert "needs about 41.0 GiB, 60.0 GiB free; 18.0 GiB stay" in text
    assert "whose number only the edges tell" in text and "run out" not in text
    assert "it may run out" in "\n".join(plan_lines(PLAN | {"free_bytes": 35 << 30}))


@pytest.mark.parametrize("columns", [34, 40, 60])
def test_the_plan_on_a_narrow_terminal(columns: int) -> None:
    text = "\n".join(wrapped(line, columns, indent=9) for line in plan_lines(PLAN))
    require_narrow(text, columns)
    for whole in ("13.0 GiB", "about 41.0 GiB", "60.0 GiB free", "131.0 MiB", "about 1,240 in all"):
        assert any(whole in line for line in text.splitlines())


def test_plan_only_writes_nothing(tmp_path: Path, edges: Path) -> None:
    arguments = ("build", "--edges", edges, "--out", tmp_path / "out", "--plan-only")
    plan = as_json(*arguments)
    assert plan["edges"] == 30_000 and plan["disk_bytes"] > 30_000 * 12
    assert not (tmp_path / "out").exists()


def test_plan_work_and_summary(tmp_path: Path, edges: Path) -> None:
    done = typed("build", "--edges", edges, "--out", tmp_path / "out", "--duplicates", "drop")
    plan, work = done.stderr.split("partition: ")
    assert "1 file, 468.9 KiB, 30,000 edges" in plan and "GiB free" in plan
    assert work.count(" in ") == 3 and "build rows: 30,000 edges in " in work
    manifest = read_manifest(tmp_path / "out")
    count = next(iter(manifest.edge_types.values())).count
    assert f"900 nodes, {count:,} edges in " in done.stdout
    assert f"duplicates: {30_000 - count:,}" in done.stdout
    assert re.search(r"memory   [\d.]+ MiB at its peak, of [\d.]+ MiB projected", done.stdout)
    assert re.search(r"size     [\d.]+ KiB in 2 files", done.stdout)
    assert re.search(r"time     partition [\d.]+ s, build rows ", done.stdout)


def test_a_directory_that_is_not_free_is_refused_before_the_plan(
    tmp_path: Path, edges: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    done = typed("build", "--edges", edges, "--out", tmp_path / "out", code=1)
    assert "holds 'mine'" in done.stderr and "plan" not in done.stderr


def test_json_and_no_progress(tmp_path: Path, edges: Path) -> None:
    arguments = ("build", "--edges", edges, "--out", tmp_path / "out", "--no-progress", "--json")
    done = typed(*arguments)
    found = json.loads(done.stdout)
    assert done.stderr == ""
    assert (found["nodes"], found["edges"], found["files"]) == (900, 30_000, 2)
    assert found["dataset_bytes"] == sum(
        one.nbytes for one in read_manifest(tmp_path / "out").files()
    )
    assert (
        0 < found["peak_anon_bytes"] <= found["projected_bytes"] == found["plan"]["projected_bytes"]
    )


@pytest.mark.requires("loop_device")
def test_a_full_disk_is_refused_before_the_work(
    tmp_path: Path, loop_disk: Callable[[int], Path]
) -> None:
    disk = loop_disk(8 << 20)
    np.save(tmp_path / "big.npy", np.zeros((2, 10**6), np.int64))
    arguments = ("build", "--edges", tmp_path / "big.npy", "--num-nodes", 9, "--out", disk / "out")
    done = typed(*arguments, code=1)
    assert "plan" in done.stderr and "partition: " not in done.stderr
    told = " ".join(done.stderr.split())
    assert re.search(r"do not fit the disk: .*likely to take 2\d\.\d MiB", told)
    # What was compared: two ids of four bytes an edge, and the rows.
    assert re.search(r"needed: 11\.4 MiB; avail", told)
    assert "what to do: free space on this disk" in done.stderr
    assert sorted(path.name for path in disk.iterdir()) == ["lost+found"]
    planned = typed(*arguments, "--plan-only", code=1)
    assert "MiB free" in planned.stdout and "do not fit the disk" in planned.stderr
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    done = typed("build", "--edges", tmp_path / "big.npy", "--out", disk / "o", code=1)
    assert done.stderr.count("overspill: ") == 1


def test_an_interrupt_says_how_to_go_on_and_the_same_command_does(tmp_path: Path) -> None:
    """Ctrl-C in a shell: the whole foreground group gets it."""
    with (tmp_path / "x.npy").open("wb") as file:  # sparse, and copied longer than the test waits
        header = {"descr": "<i8", "fortran_order": False, "shape": (9, 1 << 26)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + (9 << 29))
    np.save(tmp_path / "e.npy", np.array([[0, 1, 2], [3, 4, 5]]))
    arguments = ["build", "--edges", str(tmp_path / "e.npy"), "--out", str(tmp_path / "o")]
    arguments += ["--node-features", f"x={tmp_path / 'x.npy'}"]
    argv = [sys.executable, "-c", "from overspill.cli import main; main()", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = child_environment()
    with subprocess.Popen(
        argv, text=True, start_new_session=True, env=environment, **pipes
    ) as child:
        assert child.stderr is not None
        told = ""
        while not told.startswith("build rows"):  # the line of the phase before
            told = child.stderr.readline()
            assert child.poll() is None

        os.killpg(child.pid, signal.SIGINT)
        _, last = child.communicate()
    assert child.returncode == 130
    assert re.search(
        r"overspill: interrupted; .*/o holds an unfinished build of [\d.]+ .iB with 1 finished "
        r"step: the same command with --resume goes on, and without it starts over\n$",
        last,
    )
    assert "Traceback" not in last
    (tmp_path / "x.npy").unlink()
    done = typed("build", "--edges", tmp_path / "e.npy", "--num-nodes", 9, "--out", tmp_path / "o")
    assert "9 nodes, 3 edges" in done.stdout
