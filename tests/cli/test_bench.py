"""The bench, whole, on this machine's disk at a small size; and where it refuses."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from overspill.cli import ending
from overspill.cli.app import app
from overspill.cli.bench import place, run, shown, steps, verb
from overspill.cli.bench.advice import Advice
from overspill.cli.bench.figures import LIMITS, MEASURES
from overspill.cli.bench.receiver import Receiver
from overspill.cli.bench.run import Report, measure, run_rounds
from overspill.cli.bench.sizes import QUICK, Sizes
from overspill.errors import DiskRefusedError, SpillDirError, UnavailableError
from overspill.graph.paged import PagedArray
from overspill.linux import libc
from overspill.linux.mounts import free_disk_bytes, total_disk_bytes
from overspill.linux.random_reads import RandomReads
from overspill.settings import current_settings, inherited_run

MIB = 1 << 20
_MOST_SECONDS = 120.0
SMALL = Sizes(
    write_bytes=20 * MIB,
    read_bytes=8 * MIB,
    edges=20_000,
    random_seconds=0.1,
    rounds=2,
    most_seconds=600.0,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path, list[Any]]:
    """One small run, its directory, and what was told of its progress."""
    directory, told = tmp_path_factory.mktemp("bench"), []
    report = measure(directory, SMALL, told=lambda *what: told.append(what))
    return report, directory, told


def test_everything_is_measured_in_every_round_and_nothing_stays(
    measured: tuple[Report, Path, list[Any]],
) -> None:
    report, directory, told = measured
    assert list(directory.iterdir()) == []
    assert current_settings().spill_dir is None and inherited_run() is None
    assert report.rounds == 2 and report.sizes == SMALL and report.seconds > 0
    assert list(report.figures) == [kind.name for kind in (*LIMITS, *MEASURES)]
    for figure in report.figures.values():
        assert 0 < figure.per_second.low <= figure.per_second.median <= figure.per_second.high
    shares = [figure.ratio for figure in report.figures.values() if figure.ratio is not None]
    assert len(shares) == len(MEASURES) and all(share.low > 0 for share in shares)
    assert report.around.direct and report.around.asynchronous
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    assert phases == ["preparing", "round 1 of 2", "round 2 of 2"]
    assert all(0 <= done <= total for _, done, total in told) and told[-1][1] == told[-1][2]


def test_the_json_says_what_the_help_says(
    measured: tuple[Report, Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = measured[0]
    done = _told(monkeypatch, replace(report, advice=[]), "--json")
    held = json.loads(done.stdout)
    assert done.exit_code == 0 and held["quick"] is False and held["advice"] == []
    assert held["rounds"] == 2 and held["moved"]["edges"] == 20_000
    assert held["machine"]["file_system"] == report.around.file_system
    assert set(held["limits"]) == {kind.name for kind in LIMITS}
    assert set(held["measures"]) == {kind.name for kind in MEASURES}
    gather = held["measures"]["gather"]
    assert gather["limit"] == "random_reads" and gather["unit"] == "rows"
    assert gather["ratio"]["median"] > 0 and gather["poor_below"] == 0.6
    told = CliRunner().invoke(app, ["bench", "--help"]).stdout
    for name in (*held, *held["moved"], "poor_below", "per_second", "finding", "remedy"):
        assert name in told


@pytest.mark.parametrize("columns", [40, 80, 140, None])
def test_the_table_fits_the_terminal_and_cuts_no_number(
    measured: tuple[Report, Path, list[Any]], columns: int | None
) -> None:
    advice = [Advice("gather", "pages are asked for one by one " * 3, "allow it, or not")]
    report = replace(measured[0], advice=advice, directory="/place")
    text = shown.as_text(report, columns=columns)
    lines = text.split("\n")
    assert columns is None or max(map(len, lines)) <= columns
    for figure in report.figures.values():
        if figure.ratio is None:
            continue
        (row,) = [line for line in lines if line.startswith(f"{figure.kind.shown} ")]
        assert f"{figure.ratio.median:.2f}" in row.split() and "/s " in row
        assert (figure.kind.about in row) == (columns in (None, 140))
    assert "! pages are asked for" in text and "what to do: allow it" in text


def test_advice_is_exit_status_1_and_none_is_said(
    measured: tuple[Report, Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = [Advice("disk", "the disk is slow", "take another")]
    done = _told(monkeypatch, replace(measured[0], advice=advice))
    assert done.exit_code == 1 and "! the disk is slow" in done.stdout
    busy = Advice("machine", "the machine was busy", "wait")
    done = _told(monkeypatch, replace(measured[0], advice=[busy]))
    assert done.exit_code == 0 and "! the machine was busy" in done.stdout
    assert _told(monkeypatch, replace(measured[0], advice=[busy, *advice])).exit_code == 1
    done = _told(monkeypatch, replace(measured[0], advice=[]))
    assert done.exit_code == 0 and "Nothing to advise" in done.stdout


def _told(monkeypatch: pytest.MonkeyPatch, report: Report, *options: str) -> Any:
    monkeypatch.setattr(run, "measure", lambda *_, **__: report)
    return CliRunner().invoke(app, ["bench", *options])


def test_the_place_is_given_or_that_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measure(parent: Path, sizes: Sizes, **_: Any) -> Report:
        asked.append((parent, sizes))
        raise SpillDirError("enough")

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setenv("OVERSPILL_DIR", str(tmp_path / "spill"))
    CliRunner().invoke(app, ["bench", "--quick"])
    CliRunner().invoke(app, ["bench", "--dir", str(tmp_path)])
    monkeypatch.delenv("OVERSPILL_DIR")
    done = CliRunner().invoke(app, ["bench"])
    assert asked == [(tmp_path / "spill", QUICK), (tmp_path, verb.FULL), (Path(), verb.FULL)]
    assert done.exit_code == 1 and "overspill: enough" in done.stderr


class Clock:
    """Rounds of a bench whose every round takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.turns = seconds, 0.0, []

    def round(self, *, turned: bool, told: Callable[[int, int], None]) -> dict[str, float]:
        self.turns.append(turned)
        self.now += self.seconds
        return {"spill": self.now}


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(1.0, 3), (40.0, 3), (45.0, 2), (70.0, 1), (500.0, 1)]
)
def test_no_round_is_begun_that_would_end_too_late(seconds: float, rounds: int) -> None:
    clock, sizes = Clock(seconds), replace(SMALL, rounds=3, most_seconds=120.0)
    found = run_rounds(
        clock,  # type: ignore[arg-type]
        sizes,
        started=0.0,
        told=lambda *_: None,
        clock=lambda: clock.now,
    )
    assert len(found) == rounds
    # Neither always meets the device as the other left it.
    assert clock.turns == [False, True, False][:rounds]


def test_a_directory_in_memory_is_refused(memory_disk: Callable[..., Path]) -> None:
    disk = memory_disk("tmpfs", nbytes=1 << 20)
    done = CliRunner().invoke(app, ["bench", "--quick", "--dir", str(disk)])
    assert done.exit_code == 1 and list(disk.iterdir()) == []
    assert "tmpfs" in done.stderr and "--dir" in done.stderr and done.stdout == ""


def test_a_disk_without_room_is_refused_with_what_would_fit(
    loop_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = loop_disk(64 * MIB)
    done = CliRunner().invoke(app, ["bench", "--dir", str(disk)])
    assert done.exit_code == 1 and [path.name for path in disk.iterdir()] == ["lost+found"]
    assert "needed: 2.9 GiB" in done.stderr and "available:" in done.stderr
    assert "--quick" not in done.stderr  # which would not fit either
    room = free_disk_bytes(disk) - total_disk_bytes(disk) // 20
    fits = replace(SMALL, write_bytes=room // 4, read_bytes=0, edges=0)
    with (
        pytest.raises(DiskRefusedError, match="bench --quick, which takes"),
        place.place_for(disk, replace(fits, write_bytes=room), smaller=fits),
    ):
        pass
    with place.place_for(disk, replace(fits, write_bytes=room // 3)) as work:
        assert work.parent == disk
    assert not work.exists()


def test_a_place_that_is_none_or_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(SpillDirError, match=r"not a directory.*mkdir -p"),
        place.place_for(tmp_path / "none", SMALL),
    ):
        pass

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(place.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(SpillDirError, match="Permission denied"), place.place_for(tmp_path, SMALL):
        pass


def test_a_disk_in_memory_is_noticed_whatever_its_name(
    memory_disk: Callable[..., Path], tmp_path: Path
) -> None:
    # ext4 on a loop device, whose image lies in memory.
    image, point = memory_disk("tmpfs", nbytes=72 * MIB) / "image", tmp_path / "disk"
    image.touch()
    os.truncate(image, 64 * MIB)
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    try:
        noise = os.urandom(40 * MIB)

        def write() -> None:
            with (point / "file").open("wb") as file:
                file.write(noise)
                os.fsync(file.fileno())

        # Again where another program gave shared memory back meanwhile.
        assert any(run._share_in_memory(write, len(noise)) > 0.75 for _ in range(5))
    finally:
        subprocess.run(["umount", str(point)], check=True)


@pytest.mark.parametrize(
    ("shared", "share"),
    [
        ([0, 0, 0, 8 * MIB], 0.0),  # another program's, once
        ([0, 20 * MIB, 20 * MIB, 20 * MIB], 0.0),
        ([0, 20 * MIB, 30 * MIB, 38 * MIB], 1.0),
        ([9 * MIB, 3 * MIB, 3 * MIB, 5 * MIB], 0.0),  # removed by another program
    ],
)
def test_memory_is_a_disk_s_only_where_it_grew_with_each_of_two_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: list[int], share: float
) -> None:
    class Dry(run.Bench):
        def write_files(self) -> None: ...

        def prepare(self) -> RandomReads:
            return RandomReads(count=1, seconds=1.0, way="threads", direct=True)

    looks = iter(shared)
    look = lambda: SimpleNamespace(shared=next(looks))  # noqa: E731
    monkeypatch.setattr(run, "psutil", SimpleNamespace(virtual_memory=look))
    monkeypatch.setattr(run, "Bench", Dry)
    monkeypatch.setattr(run, "Receiver", nullcontext)
    monkeypatch.setattr(run, "run_rounds", lambda *_, **__: [])
    monkeypatch.setattr(Sizes, "fitted", lambda self, **_: self)
    assert measure(tmp_path, SMALL).around.memory_share == share


def test_another_system_is_told_so_before_anything_is_asked_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libc, "SUPPORTED", False)
    monkeypatch.delattr(os, "getloadavg")  # as on Windows
    with pytest.raises(UnavailableError, match="needs 64-bit Linux"):
        measure(tmp_path, SMALL)


def test_rows_are_gathered_from_pages_that_no_cache_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    class Watched(PagedArray):
        def take(self, ids: Any, out: Any, **how: Any) -> None:
            shares.append(self.present_share(ids))
            super().take(ids, out, **how)

    monkeypatch.setattr(steps, "PagedArray", Watched)
    bench = steps.Bench(tmp_path, SMALL, cast(Receiver, None))
    bench.write_files()
    ticks = itertools.count()
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    assert bench._gather(200, seconds=12.0) > 0
    # More rows than the file has pages to spare, and none of theirs was there.
    assert len(shares) >= 12 and max(shares) == 0.0
    shares.clear()
    assert bench._gather(1 << 16, seconds=0.0) > 0  # more than there are
    assert shares == [0.0]


def test_a_receiver_that_died_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="does not answer"), Receiver() as receiver:
        receiver._process.kill()
        receiver.send(0)


def test_an_interrupted_bench_leaves_nothing(tmp_path: Path) -> None:
    script = f"""
from dataclasses import replace
from overspill.cli import main
from overspill.cli.bench import verb
verb.QUICK = replace(verb.QUICK, **{vars(replace(SMALL, rounds=1000))!r})
main()
"""
    argv = [sys.executable, "-c", script, "bench", "--quick", "--dir", str(tmp_path)]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with child:
        assert child.stderr is not None
        # Whatever goes wrong, the child ends: its end closes what is waited for here.
        guard = threading.Timer(_MOST_SECONDS, child.kill)
        guard.start()
        try:
            first = child.stderr.readline()  # the files are there, and a round has begun
            child.send_signal(signal.SIGTERM)
            told, said = child.communicate(timeout=_MOST_SECONDS)
        finally:
            guard.cancel()
            child.kill()
    assert child.returncode == 130, first + said
    assert first.startswith("preparing") and "interrupted" in said and "Traceback" not in said
    assert told == "" and list(tmp_path.iterdir()) == []


def test_handlers_are_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), ending.ended_in_order():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGTERM) is before
