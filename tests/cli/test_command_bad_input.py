"""What can be wrong with what a verb is given, and with where it runs: one clear line each."""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confined import PythonResult
from overspill.cli import streams
from overspill.settings import child_environment
from prompt import require_narrow, typed
from small_graphs import random_graph

MAIN = "from overspill.cli import main; main()"
VERBS = {
    "info": (),
    "verify": (),
    "partition": ("--parts", "2", "--out", "parts"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def require_one_line(stderr: str) -> None:
    """Assert that an error is one line, and what to do about it another."""
    lines = stderr.splitlines()
    if lines[0].startswith("verify: "):
        del lines[0]  # the bar's line
    assert len(lines) == 2, stderr
    assert lines[0].startswith("overspill: ") and lines[1].startswith("  what to do: ")
    assert len(lines[0]) > len("overspill: ") and "Traceback" not in stderr


def spoil(place: Path, how: str) -> None:
    if how == "file":
        place.write_bytes(b"\x93NUMPY")
    elif how == "empty directory":
        place.mkdir()
    elif how == "unfinished":
        place.mkdir()
        (place / ".overspill-build").touch()
    elif how != "absent":
        random_graph(place)
        manifest, cut = place / "manifest.json", place / "indptr"
        if how == "newer":
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 99}))
        elif how == "cut manifest":
            manifest.write_bytes(manifest.read_bytes()[:100])
        else:
            cut.write_bytes(cut.read_bytes()[:-9])


SPOILT = {
    "absent": "thing does not exist",
    "file": "thing is a file",
    "empty directory": "not an Overspill dataset",
    "unfinished": "an unfinished build",
    "newer": "version 99 of its format, newer than version 2",
    "cut manifest": "manifest.json cannot be understood",
    "cut array": "indptr",
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_dataset_that_is_none(here: Path, how: str) -> None:
    spoil(here / "thing", how)
    for verb, options in VERBS.items():
        stderr = typed(verb, "thing", *options, code=1).stderr
        require_one_line(stderr)
        assert SPOILT[how] in stderr
        assert "open_dataset" not in stderr and "build_dataset" not in stderr
        assert not (here / "parts").exists()


@pytest.mark.parametrize("columns", [30, 40, 50])
def test_help_on_a_narrow_terminal(columns: int) -> None:
    for arguments in ((), *((verb,) for verb in ("build", *VERBS))):
        require_narrow(typed(*arguments, "--help", columns=columns).stdout, columns)
    told = typed("build", "--help", columns=columns).stdout
    assert "[SOURCE:RELATION:TARGET=]FILE" in told and "--memory-limit" in told


@pytest.mark.parametrize("verb", VERBS)
def test_debug_before_or_after_the_verb_is_a_traceback(here: Path, verb: str) -> None:
    for arguments in (("--debug", verb, "thing"), (verb, "thing", "--debug")):
        with pytest.raises(Exception, match="thing does not exist"):
            typed(*arguments, *VERBS[verb])
    require_one_line(typed(verb, "thing", *VERBS[verb], code=1).stderr)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("absent.csv", None, "cannot read"),
        ("e.xyz", b"0,1\n", "cannot be read from a .xyz file"),
        ("e.npy", b"\x93NUMPY\x01", "e.npy"),
        ("e.parquet", b"PAR1....", "e.parquet"),
        ("e.csv.gz", b"\x1f\x8b\x08", "e.csv.gz"),
    ],
)
def test_edges_that_are_none(here: Path, name: str, content: bytes | None, told: str) -> None:
    if content is not None:
        (here / name).write_bytes(content)
    arguments = ("build", "--edges", name, "--out", "o", "--no-progress")
    stderr = typed(*arguments, code=1).stderr
    require_one_line(stderr)
    assert told in stderr and not (here / "o").exists()


NOBODY = """
import os, sys
os.umask(0o77)
from typer.testing import CliRunner
from overspill.cli.app import app
import overspill.build
for verb in ("info", "verify", "partition --parts 2 --out p"):
    # Whatever a verb imports may not be there for everybody.
    assert CliRunner().invoke(app, [*verb.split(), "absent"]).exit_code == 1
os.setgroups([]), os.setgid(65534), os.setuid(65534)
for arguments in map(str.split, sys.argv[1:]):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), repr(done.exception)
    print(done.stderr.replace("\\n  what to do: ", " // "), end="")
"""


@pytest.mark.requires("unprivileged_user")
def test_without_permission(here: Path, run_python: Callable[..., PythonResult]) -> None:
    random_graph(here / "secret" / "g")
    (here / "secret").chmod(0o700)
    random_graph(here / "open")
    (here / "open" / "indptr").chmod(0)
    place = here / "secret" / "g"
    commands = [
        f"info {place}",
        f"verify {place}",
        f"partition {place} --parts 2 --out {here}/parts",
        f"build --edges {place}/e.csv --out {here}/o",
        f"info {here}/open",
    ]
    for parent in here.parents:
        if parent.stat().st_uid == os.getuid() and str(parent).startswith(os.environ["TMPDIR"]):
            parent.chmod(0o711)
    done = run_python(NOBODY, arguments=commands)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(commands)
    for line in lines:
        assert line.startswith("overspill: ") and "Permission denied" in line and " // " in line


@pytest.mark.requires("loop_device")
def test_a_disk_without_room_for_parts_and_for_the_demo(
    here: Path, loop_disk: Callable[[int], Path]
) -> None:
    disk = loop_disk(2 << 20)
    graph = random_graph(here / "g", num_nodes=40_000).path
    out = disk / "parts"
    stderr = typed("partition", graph, "--parts", 2, "--out", out, code=1).stderr
    require_one_line(stderr)
    assert "the parts do not fit the disk" in stderr and "available: " in stderr
    stderr = typed("demo", "--dir", disk, code=1).stderr
    require_one_line(stderr)
    assert [path.name for path in disk.iterdir()] == ["lost+found"]


def started(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.run(argv, text=True, env=child_environment(), check=False, **options)


@pytest.fixture
def unread() -> Any:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_result_that_nobody_reads(here: Path, unread: int) -> None:
    random_graph(here / "g")
    done = started(["info", "g"], stdout=unread, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, "")
    Path("spill").mkdir()
    for arguments in (
        ["--help"],
        ["info", "--help"],
        ["doctor"],
        ["status", "spill"],
        ["clean", "--dry-run", "spill"],
    ):
        done = started(arguments, stdout=unread, stderr=subprocess.PIPE)
        assert (done.returncode, done.stderr) == (141, "")
    done = started(["info", "absent"], stdout=subprocess.PIPE, stderr=unread)
    assert (done.returncode, done.stdout) == (141, "")


def test_progress_that_nobody_reads_does_not_end_a_build(here: Path, unread: int) -> None:
    np.save("e.npy", np.array([[0, 1, 2], [3, 4, 5]]))
    done = started(
        ["build", "--edges", "e.npy", "--out", "o"], stdout=subprocess.PIPE, stderr=unread
    )
    assert done.returncode == 0 and "6 nodes, 3 edges" in done.stdout


def test_streams_that_are_closed_are_not_taken_for_files(here: Path) -> None:
    np.save("e.npy", np.array([[0, 1, 2], [3, 4, 5]]))
    argv = [sys.executable, "-c", MAIN, "build", "--edges", "e.npy", "--out", "o"]
    script = 'exec "$@" <&- >&- 2>&-'
    environment = child_environment()
    done = subprocess.run(["sh", "-c", script, "sh", *argv], env=environment, check=False)
    assert done.returncode == 0
    typed("verify", "o")


def test_a_reader_is_forgotten_once(monkeypatch: pytest.MonkeyPatch, unread: int) -> None:
    stream = os.fdopen(os.dup(unread), "w")
    stream.write("held")
    monkeypatch.setattr(sys, "stdout", stream)
    streams.forget_reader()
    stream.close()  # it would raise


def test_a_terminal_of_40_columns(here: Path) -> None:
    """A real one: bars, plan, summary and an error keep to it."""
    np.save("e.npy", np.random.default_rng(1).integers(0, 10**5, (2, 10**5)))
    outer, inner = pty.openpty()
    ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", 24, 40, 0, 0))
    environment = {**child_environment(), "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    argv = [sys.executable, "-c", MAIN, "build", "--edges", "e.npy", "--out", "o"]
    ends: dict[str, Any] = {"stdin": inner, "stdout": inner, "stderr": inner}
    with subprocess.Popen(argv, env=environment, **ends) as child:
        os.close(inner)
        told = _read_all(outer)
    assert child.returncode == 0
    plain = _without_escapes(told).replace("\r", "\n")
    require_narrow(plain, 40)
    assert "100,000 edges" in plain and "1.5 MiB" in plain
    assert "build rows 100%" in plain


def _read_all(fd: int) -> str:
    told = b""
    with os.fdopen(fd, "rb", buffering=0) as file:
        while True:
            try:
                piece = file.read(1 << 16)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            told += piece
    return told.decode()


def _without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
