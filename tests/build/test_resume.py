"""A build that was killed is taken up at its last finished step, with the same bytes in the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naive import TINY
from naive_graph import ReadDataset, bytes_of
from overspill.build.child import run_build
from overspill.build.construct import construct
from overspill.build.describe import describe_build
from overspill.build.directory import MARKER_NAME, BuildDirectory
from overspill.build.inputs import Inputs
from overspill.errors import FormatError, OutputDirError, StaleFileError
from overspill.settings import child_environment
from overspill.storage.manifest import read_manifest

FOLLOWS, BUYS = ("user", "follows", "user"), ("user", "buys", "item")


class _Killed(BaseException):
    """What a killed process does not get to see."""


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Inputs with every kind of step."""
    random = np.random.default_rng(3)
    follows, buys = random.integers(0, 40, (2, 150)), random.integers(0, 30, (2, 90))
    np.save(tmp_path / "f.npy", follows * 10**10)
    np.save(tmp_path / "b.npy", np.stack([buys[0] * 10**10, buys[1]]))
    np.save(tmp_path / "w.npy", random.random((90, 2)))
    np.save(tmp_path / "x.npy", random.random((30, 3)))
    users = np.unique(np.concatenate([follows.ravel(), buys[0]]))
    np.save(tmp_path / "u.npy", users)
    return {
        "edges": {FOLLOWS: tmp_path / "f.npy", BUYS: tmp_path / "b.npy"},
        "edge_features": {BUYS: {"w": tmp_path / "w.npy"}},
        "node_features": {"item": {"x": tmp_path / "x.npy"}, "user": {"u": tmp_path / "u.npy"}},
        "ids": {"user": "remap"},
        "layout": ("csc", "csr"),
        "order": "degree",
        "edge_axis": 1,
    }


def build(out: Path, options: dict[str, Any], *, resume: bool = False) -> None:
    spec = describe_build(out, **options, resume=resume)
    construct(spec, TINY, inputs=Inputs.open(spec), send=lambda _: None)


def steps_of(out: Path) -> list[str]:
    lines = (out / MARKER_NAME).read_text().splitlines()[1:]
    return [line["step"] for line in map(json.loads, lines) if "step" in line]


def kill_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Let a build end as SIGKILL would end it, once it has noted so many steps."""
    left = [steps]
    finish = BuildDirectory.finish

    def note(self: BuildDirectory, step: str, result: Any) -> None:
        finish(self, step, result)
        left[0] -= 1
        if not left[0]:
            raise _Killed

    patch.setattr(BuildDirectory, "finish", note)
    patch.setattr(BuildDirectory, "_undo", lambda _self, _error: None)


def test_killed_after_every_step(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "whole", options)
    whole = bytes_of(tmp_path / "whole")
    done = 0
    while True:
        out = tmp_path / f"killed-{done}"
        with monkeypatch.context() as patch:
            kill_after(patch, done + 1)
            try:
                build(out, options)
            except _Killed:
                done += 1
            else:
                break
        assert len(steps_of(out)) == done
        begun: list[str] = []
        with monkeypatch.context() as patch:
            finish = BuildDirectory.finish
            patch.setattr(
                BuildDirectory,
                "finish",
                lambda self, step, result, begun=begun, finish=finish: (
                    begun.append(step),
                    finish(self, step, result),
                ),
            )
            already = steps_of(out)
            build(out, options, resume=True)
        assert not set(begun) & set(already), "a finished step was done again"
        assert bytes_of(out) == whole
        ReadDataset(out)
    # Ids, two degrees, two orders, four layouts, two moved arrays, two arrays of nodes.
    assert done == 13
    identifiers = {read_manifest(path).identifier for path in tmp_path.glob("killed-*")}
    assert len(identifiers) == 1


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_file_of_a_finished_step_that_is_not_whole_is_not_published(
    tmp_path: Path, options: dict[str, Any], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(_Killed):
        kill_after(patch, 8)
        build(out, options)
    lost = out / "edges/user/follows/user/csc.indices.safetensors"
    if how == "gone":
        lost.unlink()
    else:
        lost.write_bytes(lost.read_bytes()[:-4])
    with pytest.raises(StaleFileError, match=r"csc\.indices") as caught:
        build(out, options, resume=True)
    assert caught.value.path == str(lost) and not list(out.iterdir())


def test_another_build_is_not_resumed(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(_Killed):
        kill_after(patch, 3)
        build(out, options)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    with pytest.raises(OutputDirError, match="other inputs or options") as caught:
        build(out, options | {"layout": "csc"}, resume=True)
    assert "resume=False" in str(caught.value.remedy)
    edges = np.load(tmp_path / "b.npy")
    edges[1, 0] += 1
    np.save(tmp_path / "b.npy", edges)
    with pytest.raises(OutputDirError, match="other inputs or options"):
        build(out, options, resume=True)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    build(out, options)  # starts over
    ReadDataset(out)


def test_nothing_to_resume_is_a_build_like_any_other(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    build(tmp_path / "out", options, resume=True)
    build(tmp_path / "again", options)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "again")


def test_the_memory_may_be_another(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "whole", options)
    with monkeypatch.context() as patch, pytest.raises(_Killed):
        kill_after(patch, 6)
        build(tmp_path / "out", options)
    build(tmp_path / "out", options | {"memory_limit": "2GiB", "threads": 2}, resume=True)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "whole")


_KILLED = """
import os, signal, sys
from naive import TINY
from overspill.build.construct import construct
from overspill.build.directory import BuildDirectory
from overspill.build.inputs import Inputs
from overspill.build.spec import BuildSpec

finish, left = BuildDirectory.finish, [int(sys.argv[1])]

def note(self, step, result):
    finish(self, step, result)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

BuildDirectory.finish = note
told = []

def kill(event):
    told.append(event["phase"])
    if told[-1] == sys.argv[2] and "renumber nodes" in told:
        os.kill(os.getpid(), signal.SIGKILL)

spec = BuildSpec.from_json(sys.stdin.read())
construct(spec, TINY, inputs=Inputs.open(spec), send=kill)
"""


@pytest.mark.parametrize(
    ("steps", "phase", "scratch"),
    [(1, "", False), (5, "", False), (9, "", False), (0, "build rows", True)],
)
def test_a_process_that_was_killed(
    tmp_path: Path, options: dict[str, Any], steps: int, phase: str, scratch: bool
) -> None:
    """After a step, or in the middle of one."""
    out = tmp_path / "out"
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(steps), phase],
        input=describe_build(out, **options).to_json(),
        text=True,
        env=child_environment(PYTHONPATH=str(Path(__file__).parents[1])),
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (out / "scratch" / "edges.spool").exists() == scratch
    with pytest.raises(FormatError):
        read_manifest(out)
    run_build(describe_build(out, **options, resume=True))
    run_build(describe_build(tmp_path / "whole", **options))
    assert bytes_of(out) == bytes_of(tmp_path / "whole")
