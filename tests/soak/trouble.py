"""What befalls the stage: SIGKILL to one process of its own, a disk that fills up and is freed.

Moments and choices come from the round's source of chance; which processes live at that moment is
the kernel's affair, so a seed repeats the draws and not the victims.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import psutil

from soak.actors import Actor
from soak.counts import Counts
from soak.stage import Stage, free_bytes

_KILL_EVERY_S = 0.9
_FILL_EVERY_S = 3.5
_LEFT_BYTES = (0, 1 << 20, 8 << 20, 24 << 20)


class Troubles:
    """The troubles of one round, each at its time."""

    def __init__(self, stage: Stage, chance: Random, counts: Counts, *, lasts_s: float) -> None:
        self._stage, self._chance, self._counts = stage, chance, counts
        kills = _moments(chance, _KILL_EVERY_S, lasts_s)
        fills = _moments(chance, _FILL_EVERY_S, lasts_s)
        frees = [at + chance.uniform(0.3, 2.0) for at in fills]
        self._due = sorted(
            [(at, "kill") for at in kills]
            + [(at, "fill") for at in fills]
            + [(at, "free") for at in frees]
        )

    @property
    def next_s(self) -> float | None:
        """When the next one is due, from the round's beginning; None when all are over."""
        return self._due[0][0] if self._due else None

    def strike(self, elapsed_s: float, actors: Sequence[Actor]) -> None:
        """Do what is due by now."""
        while self._due and self._due[0][0] <= elapsed_s:
            match self._due.pop(0)[1]:
                case "kill":
                    kill_one(self._chance, actors, self._counts)
                case "fill":
                    fill(self._stage, self._chance, self._counts)
                case _:
                    free(self._stage)


def kill_one(chance: Random, actors: Sequence[Actor], counts: Counts) -> None:
    """SIGKILL to an actor, or to what it started: never to anybody else."""
    if not actors:
        return
    actor = chance.choice(sorted(actors, key=lambda one: one.number))
    family = actor.family()
    if not family:
        return
    # As often the actor as all that it started, of which there may be many.
    victim = family[0] if len(family) == 1 or chance.random() < 0.5 else chance.choice(family[1:])
    actor.killed.append(victim.pid)
    with suppress(psutil.NoSuchProcess):
        victim.kill()  # it compares the time of birth: a number taken over is not killed
        counts.add("kills", "an action" if victim.pid == actor.pid else "one that it started")


def fill(stage: Stage, chance: Random, counts: Counts) -> None:
    """Take the disk but for a little, at once."""
    size = free_bytes(stage.disk) - chance.choice(_LEFT_BYTES)
    if size <= 0 or stage.filler.exists():
        return
    fd = os.open(stage.filler, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        counts.add("disk filled", "as wanted")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        counts.add("disk filled", "to the end, beside others")
    finally:
        os.close(fd)


def free(stage: Stage) -> None:
    """Give the disk back."""
    stage.filler.unlink(missing_ok=True)


def _moments(chance: Random, every_s: float, lasts_s: float) -> list[float]:
    found, at = [], chance.expovariate(1 / every_s)
    while at < lasts_s:
        found.append(at)
        at += chance.expovariate(1 / every_s)
    return found
