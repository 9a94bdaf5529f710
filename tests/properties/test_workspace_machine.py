"""The workspace as a state machine: whatever happens to its processes, the right files are there.

Processes begin or join runs on one spill directory, make spill files, discard them, are killed or
leave; somebody reclaims. A model keeps which files must exist: those of runs with a living process,
less what was discarded, and those of dead runs until the next run begins or somebody reclaims.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from overspill.linux.identity import identify_file
from overspill.settings import export_run
from overspill.storage.leases import reclaim_dead_runs
from overspill.storage.spill_files import remove_spill_file
from overspill.storage.workspace import join_run, leave_runs

WAIT_S = 60
BYSTANDERS = ("spill_0123456789abcdef.bin", "run-notes", "dead-letters")


def work(orders: Connection, place: Path, run: str | None) -> None:
    """A process of a run: does what it is told, until it is killed or told to leave."""
    leave_runs()
    export_run(run)
    orders.send(str(join_run(place).directory))
    while True:
        name, argument = orders.recv()
        if name == "spill":
            with join_run(place).create_spill_file(argument) as file:
                file.keep()
                orders.send((file.path, identify_file(file.fd)))
        elif name == "discard":
            orders.send(remove_spill_file(*argument))
        elif name == "leave":
            return


class Workspace(RuleBasedStateMachine):
    members = Bundle("members")
    files = Bundle("files")

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="overspill-machine-"))
        for name in BYSTANDERS:
            (self.place / name).touch()
        self.context = multiprocessing.get_context("fork")
        self.alive: dict[int, tuple[Any, Connection, str]] = {}
        self.expected: dict[str, set[str]] = {}  # by run

    def start(self, run: str | None) -> int:
        mine, theirs = self.context.Pipe()
        process = self.context.Process(target=work, args=(theirs, self.place, run))
        process.start()
        theirs.close()
        assert mine.poll(WAIT_S), "a process does not join"
        directory = mine.recv()
        self.alive[process.pid] = (process, mine, directory)
        return process.pid

    def ask(self, member: int, *order: Any) -> Any:
        orders = self.alive[member][1]
        orders.send(order)
        assert orders.poll(WAIT_S), f"no answer to {order}"
        return orders.recv()

    def end(self, member: int) -> None:
        process, orders, _directory = self.alive.pop(member)
        process.join(WAIT_S)
        assert process.exitcode is not None
        process.close()
        orders.close()

    def forget_dead_runs(self) -> int:
        living = {directory for _process, _orders, directory in self.alive.values()}
        dead = self.expected.keys() - living
        for directory in dead:
            del self.expected[directory]
        return len(dead)

    @precondition(lambda self: len(self.alive) < 4)
    @rule(target=members)
    def begin_a_run(self) -> int:
        self.forget_dead_runs()  # beginning one removes what dead ones left
        member = self.start(None)
        assert self.alive[member][2] not in self.expected
        self.expected[self.alive[member][2]] = set()
        return member

    @precondition(lambda self: len(self.alive) < 4)
    @rule(target=members, sibling=members)
    def join_a_run(self, sibling: int) -> Any:
        if sibling not in self.alive:
            return multiple()
        member = self.start(self.alive[sibling][2])
        assert self.alive[member][2] == self.alive[sibling][2]
        return member

    @rule(target=files, member=members, nbytes=st.sampled_from([1, 4096, 100_000]))
    def spill(self, member: int, nbytes: int) -> Any:
        if member not in self.alive:
            return multiple()
        path, identity = self.ask(member, "spill", nbytes)
        self.expected[self.alive[member][2]].add(path)
        return path, identity

    @rule(member=members, file=consumes(files))
    def discard(self, member: int, file: tuple[str, Any]) -> None:
        """By any process, of its own run or of another, alive or dead."""
        if member not in self.alive:
            return
        holding = [paths for paths in self.expected.values() if file[0] in paths]
        assert self.ask(member, "discard", file) is bool(holding)
        for paths in holding:
            paths.remove(file[0])

    @rule(member=consumes(members))
    def kill(self, member: int) -> None:
        if member in self.alive:
            os.kill(member, signal.SIGKILL)
            self.end(member)

    @rule(member=consumes(members))
    def leave(self, member: int) -> None:
        if member in self.alive:
            self.alive[member][1].send(("leave", None))
            self.end(member)

    @rule()
    def reclaim(self) -> None:
        assert len(reclaim_dead_runs(self.place)) == self.forget_dead_runs()

    @invariant()
    def exactly_the_right_files_are_there(self) -> None:
        found = {str(path) for path in self.place.glob("*/spill_*")}
        assert found == {path for paths in self.expected.values() for path in paths}
        runs = {str(path) for path in self.place.iterdir()} - {
            str(self.place / name) for name in BYSTANDERS
        }
        assert runs == self.expected.keys()
        assert all((self.place / name).exists() for name in BYSTANDERS)

    def teardown(self) -> None:
        for member in list(self.alive):
            os.kill(member, signal.SIGKILL)
            self.end(member)
        self.reclaim()
        for name in BYSTANDERS:
            (self.place / name).unlink()
        self.place.rmdir()  # empty: nothing else was left


TestWorkspace = Workspace.TestCase
TestWorkspace.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
