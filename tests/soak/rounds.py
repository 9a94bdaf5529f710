"""The supervisor: sets the stage up in peace, plays rounds, and inspects after each.

One thread, which only starts, waits (for the next end, trouble or deadline, whichever comes first)
and looks: a fork of it is as good as a fresh process, seconds sooner.
"""

from __future__ import annotations

import select
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from soak.actors import Action, Actor, start_actor
from soak.counts import MOST_VIOLATIONS, Counts
from soak.inspection import Before, Output, digests_of, inspect, processes_left
from soak.repertoire import ACTIONS, PEACEFUL, Repertoire
from soak.stage import Stage
from soak.trouble import Troubles, free
from soak.verdicts import shortened

_HANG_S = 120
_WIDTH = 3
_MOST_ACTS = 40


@dataclass(frozen=True)
class Extent:
    """How long it plays, set up: until the time is over or the rounds are, but one at least."""

    seconds: float
    rounds: int | None = None
    round_s: float = 10.0
    hang_s: float = _HANG_S


class Soak:
    """All rounds on one stage; see `play`."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        recipes: Sequence[str],
        *,
        actions: Mapping[str, Action] = ACTIONS,
    ) -> None:
        self.counts = Counts()
        self._stage, self._seed, self._actions = stage, seed, actions
        self._repertoire = Repertoire(recipes, [name for name in actions if name not in PEACEFUL])
        self._digests: dict[str, dict[str, str]] = {}
        self._killed: set[int] = set()
        self._started = 0
        self._before = Before.of(stage)

    def play(self, extent: Extent) -> Counts:
        """Set up, play, resume in peace what is left unfinished, and inspect all the while."""
        self._set_up()
        end_s = time.monotonic() + extent.seconds
        number = 0
        while number == 0 or (time.monotonic() < end_s and number != extent.rounds):
            number += 1
            self._play_round(number, extent)
            if len(self.counts.violations) >= MOST_VIOLATIONS:
                return self.counts
        self._finish_in_peace()
        return self.counts

    def _set_up(self) -> None:
        """Write the inputs, and build in peace what everything later is held against."""
        self._in_peace("write inputs", {}, confined=False)
        repertoire, data = self._repertoire, self._stage.data
        for recipe in repertoire.recipes:
            out = f"home-{recipe}"
            self._in_peace("build", {"out": out, "recipe": recipe, "resume": False})
            self._digests[recipe] = digests_of(data / out)
            if recipe in repertoire.homes:
                repertoire.outputs[out] = Output("build", recipe, "done")
            else:
                shutil.rmtree(data / out)
        for recipe in repertoire.partitions:
            self._in_peace("partition", {"out": "first", "recipe": recipe})
            self._digests[recipe] = digests_of(data / "first")
            shutil.rmtree(data / "first")
        self._in_peace("list batches", {"recipes": repertoire.loaded})
        self._inspect("the set-up")

    def _in_peace(self, name: str, options: dict[str, Any], *, confined: bool = True) -> None:
        """One action by itself, which has no reason to fail."""
        actor = self._start(name, options, confined=confined)
        select.select([actor.pidfd], [], [], _HANG_S)
        hangs = not select.select([actor.pidfd], [], [], 0)[0]
        said = actor.abort() if hangs else ""
        if not hangs:
            actor.reap()
        told = actor.report()
        if told is None or told["outcome"] != "done" or actor.status != 0:
            raise SystemExit(
                f"soak: {name} {options} failed in peace, status {actor.status}\n"
                f"{told and told.get('trace')}\n{said or actor.output()}"
            )
        self._count(actor, "done in peace", told)

    def _play_round(self, number: int, extent: Extent) -> None:
        lasts_s = extent.round_s
        chance = Random(f"{self._seed}/{number}")
        troubles = Troubles(self._stage, chance, self.counts, lasts_s=lasts_s)
        running: dict[int, Actor] = {}
        poll = select.poll()
        start_s = time.monotonic()
        acts = 0
        while True:
            elapsed_s = time.monotonic() - start_s
            troubles.strike(elapsed_s, list(running.values()))
            self.counts.report_memory(self._stage.group.read().anon_bytes)
            while elapsed_s < lasts_s and acts < _MOST_ACTS and len(running) < _WIDTH:
                name, options = self._repertoire.draw(chance)
                actor = self._start(name, options)
                running[actor.pidfd] = actor
                poll.register(actor.pidfd, select.POLLIN)
                acts += 1
            if not running:
                break
            for fd, _ in poll.poll(1000 * _wait_s(troubles, running, start_s, extent)):
                poll.unregister(fd)
                actor = running.pop(fd)
                actor.reap()
                self._take(f"round {number}", actor)
            for fd in [fd for fd, one in running.items() if _hangs(one, extent)]:
                poll.unregister(fd)
                self._take_hanging(f"round {number}", running.pop(fd), extent)
        free(self._stage)
        self._inspect(f"round {number}")
        self._repertoire.make_room(self._stage)
        taken = time.monotonic() - start_s
        found = len(self.counts.violations)
        print(f"round {number}: {acts} actions in {taken:.1f} s, {found} violations", flush=True)
        self.counts.add("rounds", "played")

    def _take(self, round_name: str, actor: Actor) -> None:
        verdict = self._repertoire.judge(actor)
        self._killed.update(actor.killed)
        self._count(actor, verdict.outcome, actor.report())
        if verdict.violation is not None:
            self.counts.violate(round_name, [verdict.violation])
        else:
            shutil.rmtree(actor.directory)

    def _take_hanging(self, round_name: str, actor: Actor, extent: Extent) -> None:
        said = actor.abort()
        self._killed.update(actor.killed)
        self._repertoire.end(actor, "hung")
        self._count(actor, "hung", None)
        told = f"{actor.action} {actor.options} took more than {extent.hang_s} s\n{shortened(said)}"
        self.counts.violate(round_name, [told])

    def _inspect(self, round_name: str) -> None:
        left = processes_left(self._stage)
        if not left:  # those that are left have runs that live
            self._in_peace("clean", {"dry_runs": False})
            left += inspect(
                self._stage,
                self._before,
                self._repertoire.outputs,
                self._digests,
                self._killed,
            )
            self._killed.clear()
        self.counts.violate(round_name, left)
        for path in self._stage.tmp.iterdir():  # sockets and scratch of torch's killed processes
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _finish_in_peace(self) -> None:
        """What a kill or a full disk left unfinished can be taken up, and becomes what it was."""
        for name, output in self._repertoire.unfinished():
            resumed = {"resume": True} if output.kind == "build" else {}
            self._in_peace(output.kind, {"out": name, "recipe": output.recipe, **resumed})
            output.told = "done"
            self.counts.add("taken up in peace", output.kind)
        self._inspect("the end")

    def _start(self, name: str, options: dict[str, Any], *, confined: bool = True) -> Actor:
        self._started += 1
        action = name, self._actions[name]
        return start_actor(self._stage, self._started, action, options, confined=confined)

    def _count(self, actor: Actor, outcome: str, told: dict[str, Any] | None) -> None:
        self.counts.add(actor.action, outcome)
        for name, number in ((told or {}).get("counts") or {}).items():
            self.counts.add("amounts", name, number)


def _wait_s(
    troubles: Troubles, running: Mapping[int, Actor], start_s: float, extent: Extent
) -> float:
    """Until the next trouble, or until somebody hangs."""
    moments = [actor.started_s + extent.hang_s for actor in running.values()]
    if troubles.next_s is not None:
        moments.append(start_s + troubles.next_s)
    return max(0.0, min(moments) - time.monotonic()) + 0.001


def _hangs(actor: Actor, extent: Extent) -> bool:
    return time.monotonic() - actor.started_s > extent.hang_s
