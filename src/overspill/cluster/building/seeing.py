"""Which machine sees which files, and which machines share the directory of the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overspill.build.parting.split_spec import Window
from overspill.cluster.building import looking
from overspill.cluster.building.job import JobPlan
from overspill.cluster.building.looking import Sight
from overspill.cluster.building.nodes import BuildMachine
from overspill.cluster.building.request import Given
from overspill.cluster.building.tasks import Task, run_tasks
from overspill.errors import InputError, OutputDirError


@dataclass(frozen=True)
class Seen:
    """A file, and who sees it.

    Attributes:
        window: The file.
        machines: Numbers of the machines that have it.
    """

    window: Window
    machines: tuple[int, ...]


class Lookout:
    """The machines while a build is planned.

    Args:
        out: The directory of the parts.
        machines: Those that take part.
    """

    def __init__(self, out: str, machines: Sequence[BuildMachine]) -> None:
        self._out, self.machines = out, machines
        self.addresses = tuple(machine.address for machine in machines)
        self._tokens = tuple(f"machine-{machine.node_id}" for machine in machines)

    def look(self, patterns: Sequence[Given]) -> tuple[list[Sight], tuple[int, ...]]:
        """What each machine sees, and of each the first that sees the same directory.

        Raises:
            InputError: A pattern names a machine that is not there.
            OutputDirError: A machine's directory holds something else, or another run is at it.
        """
        for given in patterns:
            if given.address is not None and given.address not in self.addresses:
                raise InputError(
                    f"{given} names a machine that is not in the cluster, or has no processors",
                    path=given.pattern,
                    remedy=f"one of {', '.join(self.addresses)}",
                )
        asked = [
            tuple(g.pattern if g.address in (None, address) else "" for g in patterns)
            for address in self.addresses
        ]
        sights = self._on_each(
            [
                (looking.look, (self._out, *one))
                for one in zip(self.addresses, self._tokens, asked, strict=True)
            ]
        )
        seen = self._on_each([(looking.see, (self._out, self._tokens))] * len(self.machines))
        if not all(any(shared) for shared in seen):
            raise OutputDirError(
                f"another run plans a build in {self._out} at the same time",
                path=self._out,
                remedy="wait for it to end; the same call or command then goes on",
            )
        return sights, tuple(shared.index(True) for shared in seen)

    def settle(self, plan: JobPlan) -> None:
        """Leave the plan on every machine, and nothing else."""
        first = [disk == number for number, disk in enumerate(plan.disks)]
        if plan.machines != self.addresses:  # it was there, and other machines are up now
            first = [False] * len(self.machines)
        self._on_each(
            [
                (looking.settle, (plan if mine else None, self._out, token))
                for mine, token in zip(first, self._tokens, strict=True)
            ]
        )

    def leave(self) -> None:
        """Leave nothing on any machine, where nothing was there before."""
        self._on_each([(looking.leave, (self._out, token)) for token in self._tokens])

    def _on_each(self, acts: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[Any]:
        return run_tasks(
            [
                Task(act, arguments, (address,), cpus=0)
                for (act, arguments), address in zip(acts, self.addresses, strict=True)
            ]
        )


def resolved(patterns: Sequence[Given], sights: Sequence[Sight]) -> dict[Given, list[Seen]]:
    """The files that each pattern means, in order.

    Raises:
        InputError: No machine has one, or machines have different files under one path.
    """
    found = {}
    for place, given in enumerate(patterns):
        lists = [sight.files[place] for sight in sights]
        held: dict[str, dict[int, Window]] = {}
        for machine, windows in enumerate(lists):
            for window in windows:
                held.setdefault(window.path, {})[machine] = window
        if not held:
            raise InputError(
                f"no machine has a file that {given} means",
                path=given.pattern,
                remedy="check the path: it is of files on the machines of the cluster",
            )
        whole = [[window.path for window in one] for one in lists if len(one) == len(held)]
        order = whole[0] if whole else sorted(held)
        found[given] = [_one_file(path, held[path], sights) for path in order]
    return found


def _one_file(path: str, windows: dict[int, Window], sights: Sequence[Sight]) -> Seen:
    first, *others = windows.values()
    for window in others:
        if (window.nbytes, window.modified_ns) != (first.nbytes, first.modified_ns):
            raise InputError(
                f"{path} is another file on one machine than on another: "
                f"{first.nbytes} and {window.nbytes} bytes, or changed at another time",
                path=path,
                remedy=f'say which: "{sights[next(iter(windows))].address}:{path}"',
            )
    return Seen(first, tuple(windows))
