"""The suite's list, and what it makes of what its benchmarks write or fail to write."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import suite
from benchmarks.page import TEMPLATE, names_in
from benchmarks.stored import read_json, to_plain, write_json
from benchmarks.suite import APART, ENTRIES, Entry, command_of, merged, quick, run_suite
from made_results import made

HERE = Path(suite.__file__).parent


def runnable_benchmarks() -> set[str]:
    """The modules that measure: those that end in a main over cases, and the loaders' own."""
    return {
        path.stem
        for path in HERE.glob("*.py")
        if "sys.exit(main([" in (text := path.read_text()) or "def endure_" in text
    }


def test_every_benchmark_is_in_the_suite_or_stands_apart_for_a_reason() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(names) == len(set(names)) and not set(names) & set(APART)
    assert set(names) | set(APART) == runnable_benchmarks()
    assert all(APART.values())


def test_the_page_has_one_place_for_each() -> None:
    placed = names_in(TEMPLATE.read_text())
    assert sorted(placed) == sorted({*(one.name for one in ENTRIES), *APART} - {"loader_endurance"})


def test_whatever_has_a_size_is_measured_at_three() -> None:
    assert [one.name for one in ENTRIES if one.size_bytes is None] == ["import_time"]
    assert [one.name for one in ENTRIES if one.scaling is None] == ["import_time"]
    assert min(one.rounds for one in ENTRIES) >= 2


def test_a_benchmark_is_run_with_its_size_and_rounds(tmp_path: Path) -> None:
    entry = Entry(name="gather", size_bytes=3 << 29, rounds=4, scaling=2)
    told = command_of(entry, tmp_path, tmp_path / "out.json")
    assert told[:3] == [sys.executable, "-m", "benchmarks.gather"]
    options = dict(zip(told[3::2], told[4::2], strict=True))
    assert options == {
        "--dir": str(tmp_path),
        "--rounds": "4",
        "--json": str(tmp_path / "out.json"),
        "--size": "1536MiB",
        "--scaling": "2",
    }
    assert "--size" not in command_of(ENTRIES[0], tmp_path, tmp_path)


def test_quick_is_one_round_of_a_sixty_fourth() -> None:
    entry = Entry(name="spill", size_bytes=1 << 30, rounds=5, scaling=3)
    assert quick(entry) == Entry(name="spill", size_bytes=1 << 24, rounds=1, scaling=1)
    bare = Entry(name="import_time", size_bytes=None, rounds=5, scaling=None)
    assert quick(bare) == Entry(name="import_time", size_bytes=None, rounds=1, scaling=None)


def test_results_are_gathered_and_one_that_fails_does_not_stop_the_rest(tmp_path: Path) -> None:
    def run(argv: list[str]) -> int:
        if argv[2] == "benchmarks.spill":
            return 9
        write_json(Path(argv[argv.index("--json") + 1]), to_plain(made()))
        return 0

    entries = [one for one in ENTRIES if one.name in ("spill", "load")]
    held = json.loads(json.dumps(run_suite(entries, tmp_path, run=run)))
    assert list(held["entries"]) == ["spill", "load"]
    assert held["entries"]["spill"]["failed"] == "it ended with status 9"
    assert held["entries"]["load"]["cases"][0]["name"] == "copying & more"
    assert "machine" not in held["entries"]["load"] and held["machine"]["cpus"] > 0


def test_what_ran_anew_replaces_only_itself_and_what_failed_nothing() -> None:
    before = {"date": "old", "entries": {name: ran(2) for name in ("spill", "load", "csr")}}
    now = {"date": "new", "entries": {name: ran(3) for name in ("load", "import_time")}}
    now["entries"] |= {"csr": ran(0, failed="status 1"), "build": ran(0, failed="status 1")}
    held = merged(before, now)
    assert list(held["entries"]) == ["import_time", "spill", "load", "csr", "build"]
    assert (held["date"], held["seconds"]) == ("new", 10)
    assert held["entries"]["load"] == ran(3) and held["entries"]["build"]["failed"]
    assert held["entries"]["csr"] == held["entries"]["spill"] == {"date": "old", **ran(2)}


def ran(seconds: int, failed: str = "") -> dict[str, Any]:
    return {"seconds": seconds, "failed": failed}


def test_a_quick_run_keeps_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "suite.json"
    monkeypatch.setattr(suite, "SUITE", kept)
    monkeypatch.setattr(suite, "run_suite", lambda *_: {"entries": {}, "seconds": 0})
    assert suite.main(["--quick", "--dir", str(tmp_path)]) == 0 and not kept.exists()
    assert suite.main(["--dir", str(tmp_path)]) == 0 and kept.exists()


def test_the_suite_runs_a_real_benchmark_and_writes_what_it_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "suite.json"
    told = ["--quick", "--only", "release", "--dir", str(tmp_path), "--out", str(out)]
    assert suite.main(told) == 0
    assert "1 benchmarks took" in capfd.readouterr().out
    held = read_json(out)["entries"]["release"]
    assert [one["name"] for one in held["cases"]] == [
        "release 8.0 MiB of clean pages",
        "release 8.0 MiB of dirty pages",
    ]
    assert {len(one["points"]) for one in held["scaling"]} == {3}
    assert list(tmp_path.iterdir()) == [out.parent]


# Removes on SIGTERM what it wrote; ends at the latest with its parent, whose pipe it holds.
BENCHMARK = """
import os, pathlib, signal, sys
left, told = pathlib.Path(sys.argv[1]), int(sys.argv[2])
def end(*_):
    left.unlink()
    os._exit(143)
signal.signal(signal.SIGTERM, end)
left.touch()
os.write(told, b"x")
sys.stdin.read()
"""
SUITE = """
import os, signal, subprocess, sys
from benchmarks import suite
tells, told = os.pipe()
class Started(subprocess.Popen):
    def __init__(self, argv, **options):
        super().__init__([*argv, str(told)], stdin=subprocess.PIPE, pass_fds=[told], **options)
        os.read(tells, 1)
        if sys.argv[3] == "starts":  # before anybody has it
            os.kill(os.getpid(), signal.SIGTERM)
    def wait(self, timeout=None):
        if sys.argv[3] == "runs" and not self.signalled:
            self.signalled = True
            os.kill(os.getpid(), signal.SIGTERM)
        return super().wait(timeout)
    signalled = False
subprocess.Popen = Started
with suite.told_to_end():
    suite._run([sys.executable, "-c", sys.argv[1], sys.argv[2]])
"""


@pytest.mark.parametrize("moment", ["starts", "runs"])
def test_a_suite_that_is_told_to_end_waits_for_its_benchmark(tmp_path: Path, moment: str) -> None:
    left = tmp_path / "left"
    argv = [sys.executable, "-c", SUITE, BENCHMARK, str(left), moment]
    done = subprocess.run(argv, cwd=HERE.parent, timeout=300, check=False)
    assert done.returncode == 128 + signal.SIGTERM
    assert not left.exists()
