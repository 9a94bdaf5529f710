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
from typing import Any

import pytest

import overspill as ov
from overspill.errors import DiskRefusedError, InputError, UnavailableError
from overspill.recording import recording as module
from overspill.recording.loader_counts import LoaderCounts
from overspill.settings import child_environment
from recorded import MIB, ToldLoaders, ToldMemory, recording_of


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
        before = recording._ledger.samples
        # The thread samples of its own accord.
        while recording._ledger.samples < before + 3:
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
        recording.mark("a")
        memory.error = UnavailableError("gone")
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
        recording._save_if_due()
        assert not path.exists()  # not yet
        recording._next_save_ns = 0
        recording._save_if_due()
        assert json.loads(path.read_text())["running"]
        due = recording._next_save_ns
        assert 0 < due <= recording._elapsed_ns() + module._LATEST_SAVE_NS
        path.unlink()
        folder.rmdir()
        recording._next_save_ns = 0
        recording._save_if_due()  # told, and it goes on
        assert "the recording goes on" in caplog.text and recording._next_save_ns > 0
        folder.mkdir()
    assert not json.loads(path.read_text())["running"]


def test_a_stretch_without_samples_is_told() -> None:
    with recording_of(ToldMemory()) as recording:
        began = recording._sampler.began_ns
        recording._sampler.began_ns = began - 7 * 10**9  # seven seconds pass
    gap = document(recording)["longest_gap"]
    assert 6.9 < gap["stop_s"] - gap["start_s"] < 60
    assert "No sample could be taken for 7" in recording.to_html()


def test_a_forked_child_marks_and_publishes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with recording_of(ToldMemory(), path=path) as recording:
        holding, done = threading.Event(), threading.Event()

        def hold() -> None:
            with recording._lock:
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
        "import sys, time, overspill as ov\n"
        "from overspill.recording import recording\n"
        "recording._FIRST_SAVE_NS, recording._SAVE_GROWTH = 0, 1\n"
        "with ov.record_memory(sys.argv[1], interval=0.001):\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
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
