"""Only what the stage explains is let through; each judged by the end of a real process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from capabilities import requires
from overspill.errors import DiskRefusedError, FormatError, OverspillError
from overspill.linux.confine import MemoryGroup
from soak.actors import Actor, ViolationError, start_actor
from soak.stage import Stage
from soak.verdicts import Verdict, judge

pytestmark = requires("memory_cgroup")


@pytest.fixture
def stage(tmp_path: Path, memory_group: Callable[[int], MemoryGroup]) -> Stage:
    made = Stage(tmp_path, tmp_path / "disk", memory_group(256 << 20))
    made.reports.mkdir()
    return made


@pytest.fixture
def ended(stage: Stage) -> Iterator[Callable[..., Actor]]:
    """``ended(name, act)``: an actor that has carried it out and was reaped."""

    def run(name: str, act: Callable[[], dict[str, int]], *, killed: bool = False) -> Actor:
        number = len(list(stage.reports.iterdir()))

        def action(stage: Stage, chance: Random) -> dict[str, int]:
            return act()

        actor = start_actor(stage, number, (name, action), {})
        if killed:
            actor.killed.append(actor.pid)
        actor.reap()
        return actor

    yield run
    assert stage.members() == []


def raising(error: BaseException) -> Callable[[], dict[str, int]]:
    def act() -> dict[str, int]:
        raise error

    return act


def test_an_action_that_does_its_part_is_done(ended: Callable[..., Actor]) -> None:
    actor = ended("load", lambda: {"batches": 3})
    assert judge(actor) == Verdict("done")
    assert actor.report() == {"outcome": "done", "counts": {"batches": 3}}


@pytest.mark.parametrize("name", ["build", "load", "spill", "partition"])
def test_a_disk_that_refuses_is_explained_to_all(name: str, ended: Callable[..., Actor]) -> None:
    assert judge(ended(name, raising(DiskRefusedError("full")))) == Verdict("DiskRefusedError")


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("spill", ValueError("what?")),
        ("spill", OSError(28, "No space left on device")),
        ("spill", MemoryError()),
        ("spill", OverspillError("the base has no meaning of its own")),
        ("load", FormatError("damaged, though nobody touched it")),
        ("clean", DiskRefusedError("it frees, and takes nothing")),
        ("load", ViolationError("another batch")),
        ("verify", ViolationError("exit status 1")),
    ],
    ids=str,
)
def test_what_nothing_explains_is_a_violation(
    name: str, error: BaseException, ended: Callable[..., Actor]
) -> None:
    for killed in (False, True):
        verdict = judge(ended(name, raising(error), killed=killed))
        assert verdict.outcome == "violation"
        assert type(error).__name__ in str(verdict.violation)
        assert "in act" in str(verdict.violation), "the trace is told"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("preshare", EOFError()),
        ("hand over", BrokenPipeError(32, "Broken pipe")),
        ("collate", RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")),
    ],
    ids=str,
)
def test_a_lost_peer_is_explained_by_the_killer_alone(
    name: str, error: BaseException, ended: Callable[..., Actor]
) -> None:
    assert judge(ended(name, raising(error), killed=True)) == Verdict(type(error).__name__)
    assert judge(ended(name, raising(error))).outcome == "violation"


def test_another_error_on_top_of_a_killed_worker_is_the_workers(
    ended: Callable[..., Actor],
) -> None:
    def act() -> dict[str, int]:
        try:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
        except RuntimeError:
            raise KeyError("of threading") from None

    assert judge(ended("load", act, killed=True)).violation is None
    assert judge(ended("load", act)).outcome == "violation"


def test_another_runtime_error_is_no_killed_worker(ended: Callable[..., Actor]) -> None:
    error = RuntimeError("unable to mmap 8 bytes")
    assert judge(ended("load", raising(error), killed=True)).outcome == "violation"


def kill_itself(number: int) -> Callable[[], dict[str, int]]:
    def act() -> dict[str, int]:
        os.kill(os.getpid(), number)
        signal.pause()
        return {}

    return act


def test_only_the_killer_may_kill(ended: Callable[..., Actor]) -> None:
    act = kill_itself(signal.SIGKILL)
    assert judge(ended("build", act, killed=True)) == Verdict("killed")
    assert "not by the killer" in str(judge(ended("build", act)).violation)


def test_a_signal_of_the_memory_is_a_violation(ended: Callable[..., Actor]) -> None:
    verdict = judge(ended("spill", kill_itself(signal.SIGBUS), killed=True))
    assert f"status -{int(signal.SIGBUS)}" in str(verdict.violation)
    assert "Bus error" in str(verdict.violation), "and it says where"


def test_an_end_without_a_report_is_a_violation(ended: Callable[..., Actor]) -> None:
    def act() -> dict[str, Any]:
        os._exit(0)

    assert "status 0" in str(judge(ended("load", act)).violation)
