"""Tasks of a build: what is lost with another machine's process is tried again, and Ray is quiet.

Also what two builds of one directory do to each other, for which no cluster is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overspill.cluster.building import seeing, standing
from overspill.cluster.building.claims import claimed
from overspill.cluster.building.finishing import Staged, finish_parts
from overspill.cluster.building.job import WORK_NAME, JobPlan, publish_plan, read_plan
from overspill.cluster.building.looking import Holding, settle
from overspill.cluster.building.nodes import BuildMachine
from overspill.cluster.building.parts import part_lock
from overspill.cluster.building.publishing import tidy
from overspill.cluster.building.request import request_build
from overspill.cluster.building.seeing import Lookout
from overspill.cluster.building.tasks import Task
from overspill.errors import OutputDirError
from overspill.linux import locks
from overspill.linux.locks import lock_exclusive
from overspill.storage.partition_manifest import PARTITION_NAME

SCRIPT = """
import sys
from pathlib import Path
import ray
from ray.exceptions import WorkerCrashedError
from clusters import LocalCluster, address_of, report
from overspill.cluster.building import tasks
from overspill.cluster.building.fetching import streamed
from overspill.cluster.building.tasks import Task, run_tasks
from overspill.errors import InputError, OverspillError, StaleFileError

tried, streams = Path(sys.argv[1]), []

def fetch(name, losses, *, send):
    with open(tried / name, "a") as file:
        file.write("x")
    if len((tried / name).read_text()) <= losses:
        raise WorkerCrashedError()  # as Ray tells who asked for what that process made
    return "fetched"

def refuse(*, send):
    raise InputError("no")

def plain(*, send):
    raise ValueError("a fault of ours")

def told(*some):
    try:
        return run_tasks(some)
    except OverspillError as error:
        return f"{type(error).__name__}: {error}"

def broken():
    raise StaleFileError("/staged is gone")
    yield

def fetched(node, *, send):
    return list(streamed(node, broken))

here = (address_of(0),)
with LocalCluster(1) as nodes:
    report(
        fetched=told(Task(fetched, (nodes.node_id(0),), here, cpus=0)),
        once=told(Task(fetch, ("once", 1), here, cpus=0)),
        always=told(Task(fetch, ("always", 9), here, cpus=0)),
        fault=told(Task(plain, (), here, cpus=0)),
    )
    submit = tasks._submit

    def answered(task, machine):
        stream = submit(task, machine)
        ray.wait([stream])  # all have refused before the first is heard
        streams.append(stream)
        return stream

    tasks._submit = answered
    report(refused=told(*[Task(refuse, (), here, cpus=0)] * 3))
    report(untaken=sum(next(stream, None) is not None for stream in streams))
report(tries={name: len((tried / name).read_text()) for name in ("once", "always")})
"""


@pytest.fixture(scope="module")
def found(
    on_cluster: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return on_cluster(SCRIPT, arguments=[str(tmp_path_factory.mktemp("tried"))])


def test_a_task_whose_source_was_lost_is_tried_again(found: dict[str, Any]) -> None:
    assert found["once"] == ["fetched"] and found["tries"] == {"once": 2, "always": 3}
    assert found["always"].startswith("ClusterError: machine 127.0.0.2"), found["always"]
    assert found["fault"].startswith("BuildFailedError: machine 127.0.0.2: ValueError")


def test_the_same_error_of_several_machines_is_told_once(found: dict[str, Any]) -> None:
    assert found["refused"] == "InputError: machine 127.0.0.2: no"
    assert found["untaken"] == 0  # Ray prints errors that nobody takes, with their tracebacks


def test_what_another_machine_refused_names_it(found: dict[str, Any]) -> None:
    told = "StaleFileError: machine 127.0.0.2: from machine 127.0.0.2: /staged is gone"
    assert found["fetched"] == told


@pytest.fixture
def plan(tmp_path: Path) -> JobPlan:
    out = str(tmp_path / "out")
    request = request_build(
        *(out,), edges="/d/e.npy", num_parts=1, method="range",
        node_features=None, edge_features=None,
    )  # fmt: skip
    return JobPlan(
        identifier="a" * 32,
        out=out,
        num_parts=1,
        method="range",
        spec=request.spec,
        machines=("10.0.0.1",),
        disks=(0,),
        owners=(0,),
        nodes={},
    )


def test_the_plan_of_another_run_is_not_written_over(plan: JobPlan) -> None:
    other = replace(plan, identifier="b" * 32)
    (Path(plan.out) / WORK_NAME).mkdir(parents=True)
    for _ in range(2):
        settle(plan, plan.out, "token", send=lambda _: None)
    with pytest.raises(OutputDirError, match="taken meanwhile"):
        settle(other, plan.out, "token", send=lambda _: None)
    assert read_plan(Path(plan.out)) == plan


def test_no_plan_goes_where_another_run_ended_meanwhile(plan: JobPlan) -> None:
    (Path(plan.out) / WORK_NAME).mkdir(parents=True)
    (Path(plan.out) / PARTITION_NAME).write_text("{}")
    with pytest.raises(OutputDirError, match="taken meanwhile"):
        settle(plan, plan.out, "token", send=lambda _: None)
    assert read_plan(Path(plan.out)) is None


def test_a_part_is_built_by_one_run_at_a_time(plan: JobPlan) -> None:
    lock = plan.work / part_lock(0)
    nothing = Staged(0, {}, {})
    with (
        claimed(lock, "building"),
        pytest.raises(OutputDirError, match=r"another run is building .*part-00000"),
    ):
        finish_parts(plan, (0,), nothing, (None, 1), send=lambda _: None)
    with claimed(lock, "building"):  # the one that was refused has let go
        pass
    publish_plan(plan)
    tidy(plan, send=lambda _: None)
    assert not Path(plan.out).exists()


def test_a_lock_that_went_while_it_was_taken_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"

    def taken_late(fd: int) -> bool:
        lock.unlink()  # by the run that had it, as it ended
        return lock_exclusive(fd)

    monkeypatch.setattr(locks, "lock_exclusive", taken_late)
    with pytest.raises(OutputDirError, match="another run is staging"), claimed(lock, "staging"):
        pass


def here(tasks: list[Task]) -> list[Any]:
    return [task.act(*task.arguments, send=lambda _: None) for task in tasks]


def test_a_plan_made_while_another_one_is_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = [BuildMachine(f"10.0.0.{n}", f"node{n}", 1) for n in range(2)]
    lookout = Lookout(str(tmp_path / "out"), machines)
    monkeypatch.setattr(seeing, "run_tasks", here)
    assert lookout.look([])[1] == (0, 0)  # one disk

    def disturbed(tasks: list[Task]) -> list[Any]:
        told = here(tasks)
        for token in (tmp_path / "out" / WORK_NAME).iterdir():  # the other run settles
            token.unlink()
        return told

    monkeypatch.setattr(seeing, "run_tasks", disturbed)
    with pytest.raises(OutputDirError, match=r"plans a build in .*out at the same time"):
        lookout.look([])


@pytest.mark.parametrize("finished", [False, True])
def test_two_builds_under_one_path_are_told_apart(
    plan: JobPlan, monkeypatch: pytest.MonkeyPatch, *, finished: bool
) -> None:
    other = replace(plan, identifier="b" * 32)
    second = Holding(None, other, {}) if finished else Holding(other, None, {})  # type: ignore[arg-type] # only its name counts
    held = [Holding(plan, None, {}), Holding(None, None, {}), second]
    machines = [BuildMachine(f"10.0.0.{n}", f"node{n}", 1) for n in range(3)]
    monkeypatch.setattr(standing, "alive_machines", lambda: machines)
    monkeypatch.setattr(standing, "run_tasks", lambda _: held)
    with pytest.raises(OutputDirError, match=r"on machine 10\.0\.0\.0 .* on machine 10\.0\.0\.2"):
        standing.Standing.of(plan.out)
    held[2] = held[0]
    assert len(standing.holdings_of(plan.out)) == 3
