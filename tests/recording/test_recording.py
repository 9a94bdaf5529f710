"""Recordings: begin, sample, mark, end in every way that a program can, and publish."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import overspill as ov
from overspill.errors import DiskRefusedError, InputError, UnavailableError
from overspill.recording import Recording
from overspill.recording import recording as module
from overspill.recording.fields import column
from overspill.recording.ledger import Ledger
from overspill.recording.loader_counts import LoaderCounts, LoaderRegistry
from overspill.recording.report import _LATEST_NS
from overspill.recording.sampler import Sampler
from overspill.settings import child_environment
from recorded import MIB, RARELY, ToldLoaders, ToldMemory, recording_of, row


def document(recording: ov.Recording) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(recording.to_json())
    return held


def test_a_program_is_recorded_for_real(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with ov.record_memory(path, interval=0.005) as recording:
        with recording.phase("fill"):
            held = bytearray(b"x") * (64 * MIB)
        recording.mark("filled")
        sampled = threading.Event()
        before = recording._ledger._held.samples
        # The thread samples of its own accord.
        while recording._ledger._held.samples < before + 3:
            sampled.wait(0.01)
        assert len(held) == 64 * MIB
    found = document(recording)
    assert found["samples"] >= 6 and not found["running"] and found["ended_by"] is None
    own = found["columns"]["process_anon_bytes"]
    assert max(own) - own[0] > 50 * MIB
    assert found["peaks"]["process_anon_bytes"]["nbytes"] == max(own)
    assert [phase["name"] for phase in found["phases"]] == ["fill"]
    assert [mark["name"] for mark in found["marks"]] == ["filled"]
    assert found["columns"]["elapsed_s"] == sorted(found["columns"]["elapsed_s"])
    assert len({len(values) for values in found["columns"].values()}) == 1
    text = path.read_text()
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_what_happens_in_phases_is_told() -> None:
    memory, loaders = ToldMemory(), ToldLoaders()
    with recording_of(memory, loaders) as recording:
        with recording.phase("train"):
            memory.anon, memory.clean = 300 * MIB, 500 * MIB
            with recording.phase("epoch 1"):
                loaders.counts = LoaderCounts(5000, 50, 40_000, 10**9)
            memory.anon = 100 * MIB
        memory.kills = 1
        recording._ledger.sample()
        recording.mark("late")
    found = document(recording)
    totals = {total["name"]: total for total in found["phases"]}
    assert list(totals) == ["epoch 1", "train"]
    assert totals["train"]["peak_held_bytes"] == 300 * MIB
    assert totals["train"]["loader_rows"] == totals["epoch 1"]["loader_rows"] == 5000
    assert found["columns"]["loader_waited_s"][-1] == 1.0
    assert [span["lane"] for span in found["spans"]] == [0, 1]
    assert found["peaks"]["held_bytes"]["phase"] == "train"
    assert found["peaks"]["clean_file_bytes"]["nbytes"] == 500 * MIB
    assert [mark["name"] for mark in found["marks"]] == ["the kernel killed 1 process", "late"]
    assert repr(recording).startswith("Recording(ended, ")
    assert "peak anon + shmem 300.0 MiB of 1.0 GiB" in repr(recording)
    assert "\n" not in repr(recording)


def test_another_group_and_a_group_that_is_gone() -> None:
    memory = ToldMemory()
    with recording_of(memory) as recording:
        memory.path = "/the/outer group"
        recording._ledger.sample()
        recording.mark("a")
        memory.error = UnavailableError("gone")
        recording._ledger.sample()
        recording.mark("b")
    found = document(recording)
    assert found["source"] == "/the/outer group"
    names = [mark["name"] for mark in found["marks"]]
    assert names == ["from here on: /the/outer group", "a", "b"]
    with pytest.raises(UnavailableError, match="gone"):
        recording_of(memory)


def test_an_exception_ends_it_like_any_other_end(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with (
        pytest.raises(ZeroDivisionError),
        recording_of(ToldMemory(), path=path) as recording,
        recording.phase("divide"),
    ):
        raise ZeroDivisionError
    found = json.loads(path.read_text())
    assert (found["ended_by"], found["running"]) == ("ZeroDivisionError", False)
    (span,) = found["spans"]
    assert span["stop_s"] is not None
    assert found["format"] == "overspill-recording" and found["version"] == 1
    assert "ended by ZeroDivisionError" in recording.to_html()


def test_a_phase_that_never_ended_and_words_after_the_end() -> None:
    recording = recording_of(ToldMemory())
    span = recording.begin_phase("open")
    recording.stop()
    recording.stop()
    before = document(recording)
    recording.mark("too late")
    recording.end_phase(span)
    with recording.phase("too late"):
        pass
    assert recording.begin_phase("too late") is None
    assert document(recording) == before
    assert before["spans"][0]["stop_s"] is None and before["phases"][0]["runs"] == 1


def test_a_report_that_cannot_be_written_in_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    recordings = [recording_of(ToldMemory(), path=gone / f"{n}.html") for n in range(2)]
    gone.rmdir()
    with pytest.raises(DiskRefusedError, match="make the directory first"):
        recordings[0].stop()
    recordings[0].stop()
    # It is all still there, for another place.
    recordings[0].save(tmp_path / "saved.html")
    assert (tmp_path / "saved.html").read_text() == recordings[0].to_html()
    # The program's own error comes first.
    with caplog.at_level(logging.WARNING), pytest.raises(KeyError), recordings[1]:
        raise KeyError
    assert "1.html cannot be written" in caplog.text


def test_wrong_arguments_start_nothing(tmp_path: Path) -> None:
    for interval in (0, -1, 1e9, float("nan")):
        with pytest.raises(InputError, match=r"0\.001"):
            ov.record_memory(interval=interval)
    with pytest.raises(InputError, match="not a file"):
        ov.record_memory(tmp_path)
    assert not [one for one in threading.enumerate() if one.name == "overspill-recording"]


def test_it_is_published_while_it_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "report.json"
    with recording_of(ToldMemory(), path=path) as recording:
        report = recording._report
        assert report is not None
        recording._publish_if_due()
        assert not path.exists()  # not yet
        report._next_ns = 0
        recording._publish_if_due()
        assert json.loads(path.read_text())["running"]
        due = report._next_ns
        assert 0 < due <= recording._ledger.elapsed_ns() + _LATEST_NS
        path.unlink()
        folder.rmdir()
        report._next_ns = 0
        recording._publish_if_due()  # told, and it goes on
        assert "the recording goes on" in caplog.text and report._next_ns > 0
        folder.mkdir()
    assert not json.loads(path.read_text())["running"]


def test_a_stretch_without_samples_is_told() -> None:
    ledger = Ledger(interval_ns=100_000_000)
    for elapsed_s in (0, 0.1, 0.6, 7.6, 10):  # 0.5 s is five intervals, and no more
        ledger.add(row(elapsed_ns=int(elapsed_s * 1e9)), "", "")
        if elapsed_s < 1:
            assert ledger.longest_gap is None
    assert ledger.longest_gap == (600_000_000, 7_600_000_000)
    with recording_of(ToldMemory()) as recording:
        pass
    recording._ledger._held.longest_gap = ledger.longest_gap
    assert document(recording)["longest_gap"] == {"start_s": 0.6, "stop_s": 7.6}
    assert "No sample could be taken for 7 s, from 0.6 s on" in recording.to_html()


class LockOnce:
    """A lock that says so where the real one would wait for ever."""

    def __init__(self) -> None:
        self.held = False

    def acquire(self, blocking: bool = True) -> bool:
        assert not (blocking and self.held), "a deadlock"
        free, self.held = not self.held, True
        return free

    def release(self) -> None:
        self.held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_a_signal_handler_may_mark_amid_a_sample() -> None:
    registry, asked = LoaderRegistry(), []

    def read() -> LoaderCounts:  # called with the registry's lock, and the recording's, held
        asked.append(True)
        if len(asked) == 1:
            signal.raise_signal(signal.SIGUSR1)
        return LoaderCounts(rows=len(asked))

    recording = Recording(Sampler(ToldMemory(), loaders=registry.totals), interval=RARELY)
    recording._ledger._held.interval_ns = 1000  # old enough for a sample, if one were taken
    registry._lock = LockOnce()  # type: ignore[assignment]
    registry.follow(recording, read)
    before = signal.signal(signal.SIGUSR1, lambda *_: recording.mark("a signal"))
    try:
        recording._ledger.sample()
        with registry._lock:
            signal.raise_signal(signal.SIGUSR1)
        with recording._ledger._lock:
            signal.raise_signal(signal.SIGUSR1)
        assert [mark["name"] for mark in document(recording)["marks"]] == ["a signal"] * 3
        assert (len(asked), recording._ledger._held.samples) == (1, 2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    recording.stop()


def test_marks_between_two_samples_take_a_fixed_amount_of_memory() -> None:
    with recording_of(ToldMemory()) as recording:
        for number in range(3000):
            recording.mark(number)
            assert len(recording._ledger._marked) <= 512
    recording._ledger._marked.append(("while it ended", 0))
    found = document(recording)
    assert len(found["marks"]) <= 512 and found["marks"][0]["name"] == "0"
    assert len(found["marks"]) + found["marks_left_out"] == 3000
    assert recording._ledger._held.samples == 2


def test_marks_stand_in_the_order_of_time() -> None:
    memory = ToldMemory()
    with recording_of(memory) as recording:
        recording.mark("before")
        memory.kills = 1
        recording._ledger.sample()
        recording._ledger._marked.append(("by a thread that was slow", 0))
    names = [mark["name"] for mark in document(recording)["marks"]]
    assert names == ["by a thread that was slow", "before", "the kernel killed 1 process"]


@pytest.mark.parametrize(
    ("interval_ms", "age_ms", "samples"),
    [(60_000, 9, 1), (60_000, 11, 2), (50, 4, 1), (50, 6, 2)],
)
def test_a_short_phase_has_samples_of_its_own_at_a_long_interval(
    monkeypatch: pytest.MonkeyPatch, interval_ms: int, age_ms: int, samples: int
) -> None:
    with recording_of(ToldMemory()) as recording:
        recording._ledger._held.interval_ns = interval_ms * 1_000_000
        last = recording._ledger._held.last
        assert last is not None
        now = int(column(last, "elapsed_ns")) + age_ms * 1_000_000
        monkeypatch.setattr(recording._ledger, "elapsed_ns", lambda: now)
        recording.begin_phase("short")
        assert recording._ledger._held.samples == samples


def test_the_thread_rests_until_its_pages_are_paid_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recording_of(ToldMemory(), interval=0.1)
    recording.stop()
    taken_s, elapsed_s, rests = 0.0, 0.0, []

    def wait(rest_s: float) -> bool:
        nonlocal elapsed_s
        rests.append(round(rest_s, 6))
        elapsed_s += rest_s
        return len(rests) > 4

    def work(seconds: float) -> None:
        nonlocal taken_s
        taken_s += seconds

    monkeypatch.setattr(recording, "_stopping", SimpleNamespace(wait=wait))
    monkeypatch.setattr(recording._ledger, "elapsed_ns", lambda: int(elapsed_s * 1e9))
    monkeypatch.setattr(module.time, "thread_time", lambda: taken_s)
    monkeypatch.setattr(recording._ledger, "sample", lambda: work(0.001))
    monkeypatch.setattr(recording, "_publish_if_due", lambda: work(0.020 if len(rests) == 2 else 0))
    recording._run()
    # 1 ms of 100; then 22 ms, which want 1.1 s; then as before.
    assert rests == [0.1, 0.1, 0.9, 0.1, 0.1]


def test_a_use_that_is_read_as_less_than_its_cache_is_held_as_none() -> None:
    memory = ToldMemory()
    memory.clean, memory.kernel = 10 * MIB, -3 * MIB
    with recording_of(memory) as recording, recording.phase("all of it"):
        pass
    assert document(recording)["peaks"]["held_bytes"]["nbytes"] == 0
    assert "At its fullest" in recording.to_html()
    assert column(recording._ledger._held.last, "usage_bytes") == 7 * MIB


def test_a_forked_child_marks_and_publishes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with recording_of(ToldMemory(), path=path) as recording:
        holding, done = threading.Event(), threading.Event()

        def hold() -> None:
            with recording._ledger._lock:
                holding.set()
                done.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        holding.wait()
        child = os.fork()  # which does not have the thread that holds the lock
        if child == 0:
            code = 1
            try:
                recording.mark("in the child")
                with recording.phase("in the child"):
                    repr(recording)
                recording.stop()
                code = int(path.exists())
            finally:
                os._exit(code)
        done.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = json.loads(path.read_text())
    assert found["marks"] == [] and found["spans"] == []


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )


def test_without_a_with_the_end_of_the_interpreter_ends_it(tmp_path: Path) -> None:
    script = (
        "import sys, overspill as ov\n"
        "recording = ov.record_memory(sys.argv[1])\n"
        "recording.mark('torch' in sys.modules)\n"
        "raise ValueError('on purpose')\n"
    )
    with run(script, tmp_path / "report.json") as child:
        _, told = child.communicate()
    assert child.returncode == 1 and told.count("Traceback") == 1
    found = json.loads((tmp_path / "report.json").read_text())
    assert not found["running"] and found["title"] == "python"
    assert [mark["name"] for mark in found["marks"]] == ["False"]


def test_a_kill_leaves_the_last_page_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    script = (
        "import signal, sys, overspill as ov\n"
        "from overspill.recording import report\n"
        "report._FIRST_NS, report._GROWTH = 0, 1\n"
        "with ov.record_memory(sys.argv[1], interval=0.001):\n"
        "    print('begun', flush=True)\n"
        "    signal.pause()\n"
    )
    with run(script, path) as child:
        assert child.stdout is not None
        child.stdout.readline()
        waited = threading.Event()
        while not path.exists():  # published over and over from here on
            waited.wait(0.01)
        child.send_signal(signal.SIGKILL)
    text = path.read_text()
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    assert "still running when this was written" in text
    # At most the one that was being written, under a name of its own.
    others = [one.name for one in tmp_path.iterdir() if one != path]
    assert all(name.startswith(".overspill-") for name in others) and len(others) <= 1


def test_a_notebook_shows_it_in_a_frame() -> None:
    with recording_of(ToldMemory(), title='a "title" & <b>') as recording:
        shown = recording._repr_html_()
    assert shown.startswith("<iframe ") and shown.endswith("</iframe>")
    inner = shown.split('srcdoc="', 1)[1].split('"', 1)[0]
    assert "<" not in inner and "&lt;!doctype html&gt;" in inner


@pytest.mark.parametrize(
    "wrong",
    [{"title": 5}, {"title": b"x"}, *({"interval": one} for one in ("1", None, True, 1j, 10**400))],
)
def test_wrong_arguments_are_refused_before_anything_begins(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        ov.record_memory(tmp_path / "r.html", **wrong)
    assert list(tmp_path.iterdir()) == []
