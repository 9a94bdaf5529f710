"""Actors: one forked process an action, inside the memory group, with a report of how it ended."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import psutil

import overspill.errors
from soak.stage import Stage

# What an action gets beside the stage, and what it counts; a violation that it sees it raises.
Action = Callable[..., dict[str, int]]
_ABORT_S = 5


class ViolationError(AssertionError):
    """Something that must never be, seen by an action: wrong bytes, a build that cannot resume."""


@dataclass
class Actor:
    """One process of the supervisor's own, until it is reaped; `kills` is for the killer to tell.

    Attributes:
        killed: The processes of its family that the killer has ended.
        status: Its exit status, negative for a signal; None while it runs.
    """

    number: int
    action: str
    options: dict[str, Any]
    pid: int
    pidfd: int
    directory: Path
    started_s: float
    killed: list[int] = field(default_factory=list)
    status: int | None = None

    def family(self) -> list[psutil.Process]:
        """Itself and its descendants; not those whose parent has ended."""
        try:
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def reap(self) -> None:
        """Take its exit status, waiting for it."""
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.pidfd)

    def abort(self) -> str:
        """End a process that hangs, youngest first, each of which says where it was."""
        for process in reversed(self.family()):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGABRT)
                _wait_for(process.pid)
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.reap()
        return self.output()

    def report(self) -> dict[str, Any] | None:
        """What it told before it ended; None of one that could not."""
        path = self.directory / "report.json"
        return json.loads(path.read_text()) if path.exists() else None

    def output(self) -> str:
        """What it and its children said."""
        return (self.directory / "output").read_text(errors="replace")


def start_actor(
    stage: Stage,
    number: int,
    action: tuple[str, Action],
    options: dict[str, Any],
    *,
    confined: bool = True,
) -> Actor:
    """Fork a process that carries out an action; the caller must have one thread.

    Args:
        stage: Where it acts.
        number: Its number, which names its directory.
        action: Its name, and a function of the stage, a source of chance and the options.
        options: Options of the action; "seed" is taken as the seed of its chance.
        confined: Whether it enters the memory group.
    """
    name, function = action
    directory = stage.reports / f"{number:05d}"
    directory.mkdir()
    (directory / "output").touch()
    given = dict(options)
    chance = Random(given.pop("seed", number))
    pid = os.fork()
    if pid == 0:
        _live(stage, directory, lambda: function(stage, chance, **given), confined=confined)
    # Not reaped yet, so that the number is still its own.
    pidfd = os.pidfd_open(pid)
    return Actor(number, name, options, pid, pidfd, directory, time.monotonic())


def _wait_for(pid: int) -> None:
    """Wait a while for the end of a process that need not be a child, and reap none."""
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(pid)
        try:
            select.select([fd], [], [], _ABORT_S)
        finally:
            os.close(fd)


def _live(
    stage: Stage, directory: Path, act: Callable[[], dict[str, int]], *, confined: bool
) -> NoReturn:
    status = 70  # before it could act
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        output = os.open(directory / "output", os.O_WRONLY | os.O_APPEND)
        for number, fd in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(fd, number)
        sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
        faulthandler.enable(2)
        os.environ.update(stage.environment())
        tempfile.tempdir = None
        if confined:
            stage.enter()
        told = _told(act)
        made = directory / "report.new"
        made.write_text(json.dumps(told))
        made.rename(directory / "report.json")
        gc.collect()
        # As an interpreter ends, without taking torch apart module by module.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        status = 0
    except BaseException:  # noqa: BLE001 - it must not return into the supervisor
        traceback.print_exc()
    finally:
        os._exit(status)


def _told(act: Callable[[], dict[str, int]]) -> dict[str, Any]:
    try:
        return {"outcome": "done", "counts": act()}
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
        return {
            "outcome": "raised",
            "error": type(error).__name__,
            "named": _is_named(type(error)),
            "text": str(error),
            "while": [str(one) for one in _contexts(error)],
            "trace": "".join(traceback.format_exception(error)),
        }


def _contexts(error: BaseException) -> Iterator[BaseException]:
    """The errors that were being handled when this one was raised."""
    while error.__context__ is not None:
        error = error.__context__
        yield error


def _is_named(kind: type[BaseException]) -> bool:
    """Whether it is a leaf of Overspill's errors, and so says what was wanted and what to do."""
    return (
        issubclass(kind, overspill.errors.OverspillError)
        and kind is not overspill.errors.OverspillError
        and kind.__module__ == overspill.errors.__name__
    )
