"""Tasks on machines of a Ray cluster: started where they belong, followed, tried again.

Bottleneck: the tasks. Each is a stream of what it has done so far and, at last, its result. A task
whose process or machine is lost is tried again, for every stage goes on where it was; an error of
the work itself ends all, and names the machine. Memory: a few hundred bytes a task.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from overspill.build.wire import name_error
from overspill.cluster.building.nodes import BuildMachine, alive_machines
from overspill.errors import BuildFailedError, ClusterError, OverspillError

# What a task tells of itself: how far it is, in whatever its caller counts.
Send = Callable[[float], None]
_INTERVAL_S = 0.25
_ATTEMPTS = 3
_WAIT_S = 1.0


@dataclass(frozen=True)
class Task:
    """Work on a machine.

    Attributes:
        act: A function of a module, called with `arguments` and ``send``, which takes a number.
        arguments: Small: they are pickled.
        places: Addresses of the machines that can do it, the best first.
        cpus: Processors that Ray is to keep for it.
    """

    act: Callable[..., Any]
    arguments: tuple[Any, ...]
    places: tuple[str, ...]
    cpus: int = 1


@dataclass
class _Running:
    number: int
    task: Task
    machine: BuildMachine
    attempt: int
    done: float = 0


def run_tasks(
    tasks: Sequence[Task],
    *,
    most: Callable[[str], int] = lambda _: 1 << 30,
    on_progress: Callable[[float], None] = lambda _: None,
) -> list[Any]:
    """Run tasks, each on the first of its machines that is up, and wait for all.

    Args:
        tasks: What is to be done.
        most: How many may run at a time on the machine with this address.
        on_progress: Called with the sum of what all have sent, some times a second.

    Returns:
        The results, in the order of the tasks.

    Raises:
        OverspillError: That of the first task that failed, with the machine's address before its
            message; the others are stopped.
        ClusterError: A machine that alone can do a task is not up, or tasks were lost too often.
    """
    return _Tasks(tasks, most, on_progress).run()


class _Tasks:
    def __init__(
        self,
        tasks: Sequence[Task],
        most: Callable[[str], int],
        on_progress: Callable[[float], None],
    ) -> None:
        self._most, self._on_progress = most, on_progress
        self._waiting = [_Running(n, task, _NOWHERE, 1) for n, task in enumerate(tasks)]
        self._running: dict[Any, _Running] = {}
        self._results: list[Any] = [None] * len(tasks)
        self._ended = 0.0

    def run(self) -> list[Any]:
        try:
            while self._waiting or self._running:
                self._start()
                ready, _ = ray.wait(list(self._running), num_returns=1, timeout=_WAIT_S)
                for stream in ready:
                    self._take(stream)
                self._on_progress(self._ended + sum(one.done for one in self._running.values()))
        finally:
            for stream in self._running:
                ray.cancel(stream, force=True)
            self._hear_out(time.monotonic() + _WAIT_S)
        return self._results

    def _hear_out(self, until: float) -> None:
        """Take what cancelled tasks say, for a moment: Ray prints errors that nobody takes."""
        while self._running:
            left = max(0.0, until - time.monotonic())
            ready, _ = ray.wait(list(self._running), num_returns=1, timeout=left)
            if not ready:
                return
            for stream in ready:
                self._drop(stream)

    def _drop(self, stream: Any) -> None:
        try:
            ray.get(next(stream))
        except (RayError, StopIteration):
            del self._running[stream]

    def _start(self) -> None:
        if not self._waiting:
            return
        up = {machine.address: machine for machine in alive_machines()}
        busy = [one.machine.address for one in self._running.values()]
        left = []
        for one in self._waiting:
            places = [place for place in one.task.places if place in up]
            if not places:
                raise _nobody(one.task)
            if busy.count(places[0]) >= self._most(places[0]):
                left.append(one)
                continue
            busy.append(places[0])
            one.machine = up[places[0]]
            self._running[_submit(one.task, one.machine)] = one
        self._waiting = left

    def _take(self, stream: Any) -> None:
        one = self._running[stream]
        try:
            kind, value = ray.get(next(stream))
        except RayTaskError as error:
            del self._running[stream]
            cause = error.cause or error
            if _tells_of_a_loss(cause):
                self._again(one, cause)
                return
            own = isinstance(cause, OverspillError)
            raise _named(cause, one.machine.address) from (None if own else error)
        except (RayError, StopIteration) as error:
            del self._running[stream]
            self._again(one, error)
            return
        if kind == "done":
            one.done = value
            return
        del self._running[stream]
        self._results[one.number] = value
        self._ended += one.done

    def _again(self, one: _Running, error: Exception) -> None:
        if one.attempt >= _ATTEMPTS:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ClusterError(
                f"machine {one.machine.address}: a process of the build was lost "
                f"{_ATTEMPTS} times: {told}",
                remedy="look for the out-of-memory killer in dmesg there; then the same call or "
                "command goes on",
            ) from error
        self._waiting.append(replace(one, attempt=one.attempt + 1, done=0))


_NOWHERE = BuildMachine("", "", 0)


def _submit(task: Task, machine: BuildMachine) -> Any:
    where = NodeAffinitySchedulingStrategy(machine.node_id, soft=False)
    started: Any = _told.options(
        num_returns="streaming", num_cpus=task.cpus, scheduling_strategy=where
    )
    return started.remote(task.act, task.arguments)


@ray.remote(max_retries=0)
def _told(act: Callable[..., Any], arguments: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Run a function in a thread, and tell how far it is, as it sends it, and its result."""
    sent: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def work() -> None:
        try:
            sent.put(("result", act(*arguments, send=lambda done: sent.put(("done", done)))))
        except BaseException as error:  # noqa: BLE001 (raised below, in the task's own thread)
            sent.put(("error", error))

    threading.Thread(target=work, name="overspill-task", daemon=True).start()
    told = 0.0
    while True:
        kind, value = sent.get()
        if kind == "error":
            raise _plain(value)
        if kind == "result" or time.monotonic() - told >= _INTERVAL_S:
            told = time.monotonic()
            yield kind, value
        if kind == "result":
            return


def _plain(error: BaseException) -> BaseException:
    """What the system refused where no one expected it, as an error that names the place."""
    if isinstance(error, OverspillError) or not isinstance(error, OSError | MemoryError):
        return error
    return name_error(error, path=str(getattr(error, "filename", None) or "the build's directory"))


def _tells_of_a_loss(cause: BaseException) -> bool:
    """Whether a task failed since another machine's process was lost, which it fetched from."""
    # Ray puts a bare RayError for what cannot be pickled.
    return (
        isinstance(cause, RayError)
        and not isinstance(cause, RayTaskError)
        and type(cause) is not RayError
    )


def _named(cause: BaseException, address: str) -> BaseException:
    if not isinstance(cause, OverspillError):
        return BuildFailedError(
            f"machine {address}: {type(cause).__name__}: {cause}",
            remedy="report it if it happens again",
        )
    # One error, that names the machine, with all that the machine's own error tells.
    cause.message = f"machine {address}: {cause.message}"
    cause.args = (cause.message,)
    return cause


def _nobody(task: Task) -> ClusterError:
    several = len(task.places) > 1
    told = ", ".join(task.places)
    return ClusterError(
        f"none of the machines {told} is up, which have what the build needs"
        if several
        else f"machine {told} is not up, and it alone has what the build needs",
        remedy="start it again (ray start --address=...); the same call or command then goes on",
    )
