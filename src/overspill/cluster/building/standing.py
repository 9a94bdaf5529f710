"""How far a build in stages is, by what the machines have, and the stages that take it further."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from overspill.build.parting.split_spec import SplitReport
from overspill.build.parting.stage_split import staging_bytes
from overspill.build.progress import Progress
from overspill.cluster.building.finishing import Staged, finish_parts
from overspill.cluster.building.job import JobPlan, not_up
from overspill.cluster.building.looking import Holding, held
from overspill.cluster.building.nodes import BuildMachine, alive_machines
from overspill.cluster.building.parts import FinishedPart
from overspill.cluster.building.publishing import publish, tidy
from overspill.cluster.building.staging import Survey, stage, survey
from overspill.cluster.building.tasks import Task, run_tasks
from overspill.errors import InputError, OutputDirError
from overspill.linux.paths import require_path


class Standing:
    """How far a build is."""

    def __init__(self, plan: JobPlan) -> None:
        self.plan = plan
        up = {machine.address: machine for machine in alive_machines()}
        self._up = {
            number: up[address] for number, address in enumerate(plan.machines) if address in up
        }
        tasks = [Task(survey, (plan,), (machine.address,), cpus=0) for machine in self._up.values()]
        self._surveys: dict[int, Survey] = dict(zip(self._up, run_tasks(tasks), strict=True))

    @classmethod
    def of(cls, out: str | Path) -> Standing | None:
        """How far the build in a directory is; None where it is complete and nothing is left."""
        holdings = holdings_of(out)
        for holding in holdings.values():
            if holding.plan is not None:
                return cls(holding.plan)
        if any(holding.finished is not None for holding in holdings.values()):
            return None
        raise InputError(
            f"no machine has a plan of a build in {out}",
            path=str(out),
            remedy="run the stage init first: init_build, or overspill cluster init",
        )

    def _staged(self) -> dict[int, tuple[int, SplitReport]]:
        """Of each split that is staged, on which machine."""
        found: dict[int, tuple[int, SplitReport]] = {}
        for machine, one in self._surveys.items():
            for number, report in one.splits.items():
                found.setdefault(number, (machine, report))
        return found

    def _finished(self) -> dict[int, FinishedPart]:
        found: dict[int, FinishedPart] = {}
        for one in self._surveys.values():
            found |= one.parts
        return found

    def stage(self, limit_bytes: int | None, progress: Progress) -> bool:
        """Stage the splits that are not; False where every part is finished without them."""
        plan, staged = self.plan, self._staged()
        if len(self._finished()) == plan.num_parts:
            return False
        missing = [split for split in plan.splits if split.spec.number not in staged]
        if not missing:
            return True
        total = sum(split.nbytes for split in plan.splits)
        before = total - sum(split.nbytes for split in missing)
        progress.begin("partition", total, "B")
        tasks = [
            Task(
                stage,
                (str(plan.split_directory(split.spec.number)), split),
                tuple(plan.machines[machine] for machine in split.machines),
            )
            for split in missing
        ]
        run_tasks(
            tasks,
            most=self._most(limit_bytes),
            on_progress=lambda done: progress.reach(before + int(done)),
        )
        progress.end()
        return True

    def _most(self, limit_bytes: int | None) -> Callable[[str], int]:
        """How many splits may be staged at a time on each machine."""
        each = staging_bytes(self.plan.num_parts, len(self.plan.spec.layouts))
        found = {}
        for number, machine in self._up.items():
            room = self._surveys[number].available_bytes
            rooms = [bytes_ for bytes_ in (limit_bytes, room) if bytes_ is not None]
            found[machine.address] = max(1, min([machine.cpus, *(b // each for b in rooms)]))
        # One that came up since was not asked for its memory.
        return lambda address: found.get(address, 1)

    def finish(self, limit_bytes: int | None, progress: Progress) -> None:
        """Build the parts that are not finished, publish, and tidy up."""
        plan, staged, finished = self.plan, self._staged(), self._finished()
        if len(finished) < plan.num_parts:
            self._require_staged(staged)
            finished |= self._build_parts(staged, finished, limit_bytes, progress)
        progress.begin("publish", len(self._up), "machines")
        parts = [finished[index] for index in range(plan.num_parts)]
        owned = {plan.disks[owner] for owner in plan.owners}
        self._on_disks(publish, plan, parts, disks=owned)
        self._on_disks(tidy, plan, disks=set(plan.disks))
        progress.end()

    def _build_parts(
        self,
        staged: dict[int, tuple[int, SplitReport]],
        finished: dict[int, FinishedPart],
        limit_bytes: int | None,
        progress: Progress,
    ) -> dict[int, FinishedPart]:
        plan = self.plan
        node_ids = {number: machine.node_id for number, machine in self._up.items()}
        tasks = []
        for machine, parts in self._owned(set(range(plan.num_parts)) - set(finished)).items():
            limits = limit_bytes, plan.spec.threads or self._up[machine].cpus
            tasks.append(
                Task(
                    finish_parts,
                    (plan, tuple(parts), Staged(machine, node_ids, staged), limits),
                    (plan.machines[machine],),
                )
            )
        edges = sum(
            file.edges
            for _, report in staged.values()
            for files in report.files.values()
            for file in files
            if file is not None
        )
        progress.begin("build rows", edges, "edges")
        results = run_tasks(tasks, on_progress=lambda done: progress.reach(int(done)))
        progress.end()
        return {part.index: part for some in results for part in some}

    def _owned(self, parts: set[int]) -> dict[int, list[int]]:
        """The machine of each part: another of the same disk where its own is not up."""
        found: dict[int, list[int]] = {}
        for part in sorted(parts):
            owner = self.plan.owners[part]
            same = [one for one in self._up if self.plan.disks[one] == self.plan.disks[owner]]
            if not same:
                raise not_up(self.plan, owner, f"part {part} goes to its disk")
            machine = owner if owner in self._up else same[part % len(same)]
            found.setdefault(machine, []).append(part)
        return found

    def _require_staged(self, staged: Mapping[int, object]) -> None:
        missing = [
            split.spec.number for split in self.plan.splits if split.spec.number not in staged
        ]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(self.plan.splits)} splits of the input are not staged on "
                f"the machines that are up, split {missing[0]} first",
                path=self.plan.out,
                remedy="run the stage partition first: partition_build, or overspill cluster "
                "partition",
            )

    def _on_disks(self, act: Callable[..., Any], *arguments: Any, disks: set[int]) -> None:
        """Run something once for each directory that machines share, or have alone."""
        chosen: dict[int, BuildMachine] = {}
        for number, machine in self._up.items():
            if self.plan.disks[number] in disks:
                chosen.setdefault(self.plan.disks[number], machine)
        run_tasks([Task(act, arguments, (machine.address,), cpus=0) for machine in chosen.values()])


def holdings_of(out: str | Path) -> dict[str, Holding]:
    """What each machine that is up has of a build, by address.

    Raises:
        OutputDirError: One machine has another build than another has.
    """
    place = str(Path.cwd() / Path(require_path(out)).expanduser())
    addresses = [machine.address for machine in alive_machines()]
    tasks = [Task(held, (place,), (address,), cpus=0) for address in addresses]
    found = dict(zip(addresses, run_tasks(tasks), strict=True))
    _require_one_build(place, found)
    return found


def _require_one_build(out: str, holdings: Mapping[str, Holding]) -> None:
    holders: dict[str, str] = {}
    for address, holding in holdings.items():
        for one in (holding.plan, holding.finished):
            if one is not None:
                holders.setdefault(one.identifier, address)
    if len(holders) > 1:
        (one_build, first), (other, second), *_ = holders.items()
        raise OutputDirError(
            f"{out} holds one build on machine {first} and another one on machine {second}: "
            f"{one_build} and {other}",
            path=out,
            remedy="remove the directory where the build is that is not meant",
        )
