"""``overspill status``: the lines at any width, the JSON, the watch, and bad input."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from overspill.cli.app import app
from overspill.cli.status import fitted, to_json
from overspill.cli.status_text import format_age, format_tensor, status_lines, total_lines
from overspill.storage.lease_records import LeaseRecord
from overspill.storage.leases import found_run
from overspill.storage.run_reports import FileReport, ProcessReport, RunReport, SpillDirReport
from overspill.storage.spill_records import TensorRecord, record_tensor
from overspill.storage.workspace import join_run, leave_runs

MIB = 1 << 20
PLACE = Path("/data/spill")
FILES = (
    FileReport(
        "spill_00000000000000aa.bin",
        1536 * MIB,
        TensorRecord("float32", (3_145_728, 128)),
        12 * MIB,
        3 * MIB,
        (101, 102, 103, 104, 105, 106),
    ),
    FileReport("spill_00000000000000bb.bin", 8, TensorRecord("int64", ()), 0, 0, ()),
    FileReport("spill_00000000000000cc.bin", 5),
)
ALIVE = RunReport(
    PLACE / ("run-" + "a" * 32),
    "alive",
    began=LeaseRecord("box/1f-2e", 101, 1.7e9, "python 'my train.py' --epochs 3", True),
    age_s=2 * 3600 + 14 * 60 + 59,
    is_of_this_machine=True,
    processes=(ProcessReport(101, "python", True), ProcessReport(4_000_102, None, False)),
    files=FILES,
)
DEAD = RunReport(PLACE / ("run-" + "b" * 32), "dead", files=FILES[:1])
REPORT = SpillDirReport(PLACE, (ALIVE, DEAD), 2, 64 * MIB, "ext4", 61 << 30, 100 << 30)


@pytest.fixture(autouse=True)
def runs_left() -> Iterator[None]:
    leave_runs()
    yield
    leave_runs()


def told(width: int | None, report: SpillDirReport = REPORT, most_files: int = 10) -> str:
    return "\n".join(status_lines(report, width=width, most_files=most_files))


class TestLines:
    def test_a_line_a_fact_where_there_is_no_width(self) -> None:
        lines = told(None).splitlines()
        for line in (
            "run-" + "a" * 32,
            "  alive    begun 2 h 14 min ago, held by 2 processes",
            "  command  python 'my train.py' --epochs 3",
            "  pids     101 4000102 (mappings not shown)",
            "  host     box; begun by process 101 on this machine",
            "  files    3 files, 1.5 GiB, 12.0 MiB in memory, 3.0 MiB not written back, "
            "unknown of 1 what is in memory",
            "  dead     -",
            "/data/spill",
            "  runs     2 runs, 1 alive, 1 dead",
            "  nameless 2 files, 64.0 MiB mapped: discarded, or batches on their way",
            "  disk     61.0 GiB free of 100.0 GiB, ext4",
            "  to clean 1 dead run (1.5 GiB), removed by the next run that begins here, or by: "
            "overspill clean /data/spill",
        ):
            assert line in lines, line

    def test_files_are_a_table_where_it_fits(self) -> None:
        table = [line.split() for line in told(None).splitlines() if "spill_" in line][:3]
        first, second, third = (" ".join(row) for row in table)
        assert first == (
            "1.5 GiB 12.0 MiB float32 3,145,728 x 128 101 102 103 104 +2 spill_00000000000000aa.bin"
        )
        assert second == "8 B 0 B int64 scalar nobody spill_00000000000000bb.bin"
        assert third == "5 B - - nobody spill_00000000000000cc.bin"
        one = told(None, replace(REPORT, runs=(ALIVE,)))
        assert len({len(line) for line in one.splitlines() if line.endswith(".bin")}) == 1

    @pytest.mark.parametrize("width", [20, 40, 60, 80])
    def test_narrow_lines_keep_every_number_whole(self, width: int) -> None:
        text = told(width)
        names = re.compile(r"(run-|spill_|/data)\S+$")
        for line in text.splitlines():
            assert len(line) <= width or names.search(line) or len(line.split()) < 3, line
        if width >= 40:
            for number in (
                "1.5 GiB",
                "12.0 MiB in memory",
                "61.0 GiB free of 100.0 GiB",
                "3 files",
            ):
                assert number in text, number
            assert "float32 3,145,728 x 128" in text
        flat = " ".join(text.split())
        wide = " ".join(told(None).split())
        for number in re.findall(r"[\d,.]+ ?(?:[KMGT]?i?B\b)?", wide):
            assert number.strip() in flat

    def test_the_largest_files_are_shown_and_the_others_summed_up(self) -> None:
        text = told(None, most_files=1)
        assert "bb.bin" not in text and "    and 2 more, 13 B, 0 B in memory" in text
        assert ".bin" not in told(None, most_files=0)

    def test_what_others_wrote_cannot_act_on_the_terminal(self) -> None:
        began = LeaseRecord("\x1b[2Jhost/\u202e", 7, 1.0, "rm\n\x07 \x1b]0;title\udcff")
        run = replace(ALIVE, began=began, is_of_this_machine=False, reason="\x1b[31m")
        text = told(80, replace(REPORT, runs=(run,), directory=Path("/d\x1b[2J\nata")))
        assert all(one.isprintable() or one == "\n" for one in text)
        assert r"\x1b]0;title\udcff" in text and "elsewhere, or before a restart" in text
        text.encode()

    def test_many_pids_and_long_commands_are_cut(self) -> None:
        processes = tuple(ProcessReport(pid, "x " * 1000, True) for pid in range(1000, 1100))
        text = told(80, replace(REPORT, runs=(replace(ALIVE, began=None, processes=processes),)))
        assert "1023 and 76 more" in " ".join(text.split()) and "1024" not in text
        assert len(text) < 4000 and "x ..." in text

    @pytest.mark.parametrize(
        ("seconds", "age"),
        [
            (0, "0 s"),
            (59.9, "59 s"),
            (60, "1 min"),
            (3725, "1 h 2 min"),
            (3605, "1 h"),
            (200_000, "2 d 7 h"),
        ],
    )
    def test_ages(self, seconds: float, age: str) -> None:
        assert format_age(seconds) == age

    def test_tensors(self) -> None:
        assert format_tensor(None) == "-"
        assert format_tensor(TensorRecord("int8", (0, 1000))) == "int8 0 x 1,000"

    def test_no_run_at_all(self) -> None:
        text = told(40, replace(REPORT, runs=(), unnamed_files=0))
        assert "runs     none" in text and "files    none" in text and "clean" not in text


def test_a_screen_keeps_the_totals_whatever_is_left_out() -> None:
    lines = [str(number) for number in range(30)]
    assert fitted(lines, 4, 31) == lines
    screen = fitted(lines, 4, 10)
    assert screen == ["0", "1", "2", "3", "... 22 lines left out", "26", "27", "28", "29"]
    assert len(fitted(lines, 4, 3)) == 5  # the totals whatever the height
    last = total_lines(REPORT, width=80)
    assert last == status_lines(REPORT, width=80, most_files=1)[-len(last) :]


def test_json_says_null_where_nothing_is_known() -> None:
    document = json.loads(json.dumps(to_json(REPORT)))
    alive, dead = document["runs"]
    assert (alive["state"], alive["run"], alive["pid"]) == ("alive", "a" * 32, 101)
    assert alive["files"][0] == {
        "name": "spill_00000000000000aa.bin",
        "size_bytes": 1536 * MIB,
        "dtype": "float32",
        "shape": [3_145_728, 128],
        "resident_bytes": 12 * MIB,
        "dirty_bytes": 3 * MIB,
        "mapped_by": [101, 102, 103, 104, 105, 106],
    }
    unknown = alive["files"][2]
    assert (unknown["dtype"], unknown["shape"], unknown["resident_bytes"]) == (None, None, None)
    assert (dead["host"], dead["pid"], dead["command"], dead["age_s"]) == (None,) * 4
    totals = document["totals"]
    assert (totals["alive"], totals["dead"], totals["files"]) == (1, 1, 4)
    assert (totals["dead_bytes"], totals["nameless_bytes"]) == (1536 * MIB, 64 * MIB)
    assert document["disk"] == {
        "file_system": "ext4",
        "free_bytes": 61 << 30,
        "total_bytes": 100 << 30,
    }


class TestCommand:
    def test_json_of_a_real_directory(self, tmp_path: Path) -> None:
        run = join_run(tmp_path)
        with run.create_spill_file(80) as file:
            record_tensor(file.fd, TensorRecord("float64", (5, 2)))
            file.keep()
        os.close(found_run(tmp_path)[1])
        done = CliRunner().invoke(app, ["status", str(tmp_path), "--json"])
        assert done.exit_code == 0, done.output
        alive, dead = json.loads(done.stdout)["runs"]
        assert (alive["state"], dead["state"]) == ("alive", "dead")
        assert [one["pid"] for one in alive["processes"]] == [os.getpid()]
        (held,) = alive["files"]
        assert (held["dtype"], held["shape"], held["size_bytes"]) == ("float64", [5, 2], 80)

    def test_the_directory_comes_from_the_settings(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OVERSPILL_DIR", str(tmp_path))
        monkeypatch.setenv("COLUMNS", "40")
        done = CliRunner().invoke(app, ["status"])
        assert done.exit_code == 0 and str(tmp_path) in done.stdout.splitlines()
        assert "runs     none" in done.stdout

    @pytest.mark.parametrize("how", [[], ["--json"]])
    def test_a_watch_looks_until_it_is_interrupted(
        self, how: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 1:
                join_run(tmp_path)
            else:
                raise KeyboardInterrupt

        monkeypatch.setattr(time, "sleep", wait)
        argv = ["status", str(tmp_path), "--watch", "--interval", "7", *how]
        done = CliRunner().invoke(app, argv)
        assert done.exit_code == 130 and waits == [7, 7]
        assert "starts over" not in done.output
        if how:
            looks = [json.loads(line)["totals"]["alive"] for line in done.stdout.splitlines()]
            assert looks == [0, 1]
        else:
            assert done.stdout.count("every 7 s") == 2 and "\x1b" not in done.stdout
            assert done.stdout.index("runs     none") < done.stdout.index("1 run, 1 alive")

    @pytest.mark.parametrize("verb", ["status", "clean"])
    def test_bad_input_is_one_line_and_a_remedy(
        self, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("OVERSPILL_DIR", raising=False)
        (tmp_path / "file").touch()
        for arguments, reason in (
            ([], "no spill directory is given"),
            ([str(tmp_path / "none")], "No such file or directory"),
            ([str(tmp_path / "file")], "Not a directory"),
        ):
            done = CliRunner().invoke(app, [verb, *arguments])
            first, second = done.stderr.strip().splitlines()
            assert done.exit_code == 1 and done.stdout == ""
            assert first.startswith("overspill: ") and reason in first
            assert second.startswith("  what to do: ")
        assert CliRunner().invoke(app, [verb, "--no-such"]).exit_code == 2
