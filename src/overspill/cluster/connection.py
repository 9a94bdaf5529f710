"""This process's way to the servers of a dataset: found by name, asked, asked again.

A request is safe to repeat, so whatever Ray reports of a machine, a process or an object that was
lost is answered by asking again, until the deadline. What a server itself refuses is raised here as
it was raised there. Threads may ask at the same time. A forked child cannot: Ray's connection is
its parent's.
"""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    GetTimeoutError,
    RayError,
    RayTaskError,
)

from overspill.cluster.layout import Layout, Machine
from overspill.errors import ClusterError, InputError, OverspillError

NAMESPACE = "overspill"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_ANSWER_S = 10.0
_AFTER_FORK = {"forked": False}
# Ray takes a second connection of a process for a mistake, of whichever thread it is.
_CONNECTING = threading.Lock()


@dataclass(frozen=True)
class Link:
    """How a dataset is found again from another process: what it pickles as.

    Attributes:
        path: The partition's directory.
        partition: Its identifier.
        cluster: Address of the Ray cluster.
        node: Address of the sender's node, which a process on the same machine connects to.
        servers: Names of the actors.
        deadline_s: How long a request may take.
    """

    path: str
    partition: str
    cluster: str
    node: str
    servers: tuple[str, ...]
    deadline_s: float


@dataclass
class Pending:
    """A request under way.

    Attributes:
        machine: Number of the machine that was asked.
        method: What it was asked.
        arguments: With what, to ask again.
        until: When its time is over.
        reference: Ray's promise.
    """

    machine: int
    method: str
    arguments: tuple[Any, ...]
    until: float
    reference: Any


class Connection:
    """Asks the servers of a layout.

    Args:
        layout: The dataset.
        deadline_s: How long a request may take, with all its repetitions.
    """

    def __init__(self, layout: Layout, deadline_s: float) -> None:
        self.layout, self._deadline_s = layout, deadline_s
        self._handles: dict[str, Any] = {}
        self._lock = threading.Lock()

    def send(self, machine: int, method: str, *arguments: Any) -> Pending:
        """Ask a machine; `receive` waits for the answer.

        Raises:
            ClusterError: Its server is no more.
        """
        until = time.monotonic() + self._deadline_s
        pending = Pending(machine, method, arguments, until, None)
        self._ask(pending)
        return pending

    def receive(self, pending: Pending) -> Any:
        """Wait for an answer, asking again where it was lost.

        Raises:
            OverspillError: What the server raised.
            ClusterError: No answer in time, or the server is no more.
        """
        pause = _FIRST_PAUSE_S
        while True:
            left = pending.until - time.monotonic()
            try:
                return ray.get(pending.reference, timeout=max(left, 0.0))
            except RayTaskError as error:
                raise as_raised(error, f"machine {self._machine(pending).address}") from None
            except GetTimeoutError as error:
                raise self._late(pending) from error
            except RayError as error:
                if left <= pause:
                    raise self._late(pending, error) from error
                if isinstance(error, ActorDiedError):
                    # For good, or another one has come to its name.
                    with self._lock:
                        self._handles.pop(self._machine(pending).server, None)
            # What was lost is often not yet known to be back.
            threading.Event().wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._ask(pending)

    def _ask(self, pending: Pending) -> None:
        require_connected()
        machine = self._machine(pending)
        handle = self._handle(machine)
        method = getattr(handle, pending.method).options(max_task_retries=-1)
        pending.reference = method.remote(*pending.arguments)

    def _handle(self, machine: Machine) -> Any:
        with self._lock:
            held = self._handles.get(machine.server)
            if held is None:
                held = self._handles[machine.server] = find_server(machine.server, machine)
        return held

    def _machine(self, pending: Pending) -> Machine:
        return self.layout.machines[pending.machine]

    def _late(self, pending: Pending, error: RayError | None = None) -> ClusterError:
        machine = self._machine(pending)
        told = "" if error is None else f" ({type(error).__name__}: {first_line(error)})"
        parts = ", ".join(map(str, machine.parts[:8])) + (", ..." if len(machine.parts) > 8 else "")
        return ClusterError(
            f"machine {machine.address} did not answer within {self._deadline_s:g} s, and it "
            f"serves part {parts} of {self.layout.path}{told}",
            path=self.layout.path,
            remedy="see whether the machine is up and in the cluster (ray status); open the "
            "dataset with a longer deadline_s where requests wait for a disk",
        )


def connect(link: Link) -> None:
    """Connect this process to the cluster of a dataset it was sent, if it is not.

    Raises:
        ClusterError: It is connected to another cluster, was forked from a process that was
            connected, or the cluster cannot be reached.
    """
    require_no_fork()
    if not ray.is_initialized() and start_ray(link.cluster, node=link.node):
        # A child of multiprocessing ends without Python's own exit functions.
        multiprocessing.util.Finalize(None, ray.shutdown, exitpriority=10)
    here = str(ray.get_runtime_context().gcs_address)
    if here != link.cluster:
        raise ClusterError(
            f"{link.path} is served in the Ray cluster at {link.cluster}, and this process is "
            f"connected to the one at {here}",
            path=link.path,
            remedy="open the dataset again in this cluster",
        )


def start_ray(address: str | None, *, node: str | None = None) -> bool:
    """Connect this process to a cluster; False where another thread has connected it meanwhile.

    Raises:
        InputError: The address is that of Ray's client server.
        ClusterError: The cluster cannot be reached, or refuses.
    """
    if address is not None and "://" in address:
        raise InputError(
            f"a process that is connected through Ray's client server ({address}) cannot read "
            "parts",
            value=address,
            remedy="run it on a machine of the cluster, and give the address as host:port",
        )
    options: dict[str, Any] = {} if node is None else {"_node_ip_address": node}
    _require_answer(address)
    with _CONNECTING:
        if ray.is_initialized():
            return False
        _start(address, options)
    return True


def _start(address: str | None, options: dict[str, Any]) -> None:
    try:
        ray.init(
            address=address or "auto",
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **options,
        )
    except RayError as error:
        raise ClusterError(
            f"the Ray cluster at {address or 'this machine'} refused: {first_line(error)}",
            remedy="where it wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the "
            "one it was started with (~/.ray/auth_token where nothing else was said)",
        ) from error
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise ClusterError(
            f"no Ray cluster can be reached at {address or 'this machine'}: {first_line(error)}",
            remedy="start one (ray start --head), call ray.init() first, or give its address",
        ) from error


def _require_answer(address: str | None) -> None:
    """Refuse an address where nobody listens: Ray itself tries it for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster can be reached at {address}: {error}",
            remedy="check the address, and that the cluster is up (ray status)",
        ) from error


def find_server(name: str, machine: Machine | None = None) -> Any:
    """The handle of a server by its name (ClusterError: it has ended)."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError as error:
        raise _ended(machine, name) from error


def layout_from(link: Link) -> Layout:
    """Ask any of a dataset's servers what there is.

    Raises:
        ClusterError: None answers in time, or all have ended.
    """
    handles = []
    for name in link.servers:
        try:
            handles.append(find_server(name))
        except ClusterError as error:
            ended = error
    if not handles:
        raise ended
    asked = [handle.layout.options(max_task_retries=-1).remote() for handle in handles]
    until, told, dead = time.monotonic() + link.deadline_s, "", 0
    while asked:
        done, asked = ray.wait(asked, timeout=max(until - time.monotonic(), 0.0))
        if not done:
            break
        try:
            found = ray.get(done[0])
        except RayError as error:
            dead += isinstance(error, ActorDiedError)
            told = f" ({type(error).__name__}: {first_line(error)})"
            continue
        assert isinstance(found, Layout)
        return found
    if dead == len(handles):  # those that were just ended keep their names for a moment
        raise _ended(None, link.servers[0])
    raise ClusterError(
        f"none of the {len(handles)} machines that serve {link.path} answered within "
        f"{link.deadline_s:g} s{told}",
        path=link.path,
        remedy="see whether they are up (ray status)",
    )


def require_connected() -> None:
    """Refuse to ask without a connection: Ray would start a cluster of its own (ClusterError)."""
    require_no_fork()
    if not ray.is_initialized():
        raise ClusterError(
            "this process is connected to no Ray cluster any more",
            remedy="open the dataset again after ray.init()",
        )


def require_no_fork() -> None:
    """Refuse to use a connection that a parent made (ClusterError)."""
    if was_forked():
        raise ClusterError(
            "this process was forked from one that is connected to Ray, whose connection does not "
            "survive a fork",
            remedy='start it by spawn: multiprocessing_context="spawn"',
        )


def was_forked() -> bool:
    """Whether this process was forked from one that is connected: its connection is not its own."""
    return _AFTER_FORK["forked"]


def _note_fork() -> None:
    _AFTER_FORK["forked"] = _AFTER_FORK["forked"] or ray.is_initialized()


os.register_at_fork(after_in_child=_note_fork)


def as_raised(error: RayTaskError, where: str) -> Exception:
    """What a server raised, as it raised it."""
    cause = error.cause
    if isinstance(cause, OverspillError):
        cause.add_note(f"raised on {where}")
        return cause
    return ClusterError(
        f"the server on {where} failed: {type(cause).__name__}: {first_line(cause)}",
        remedy="see the server's log in the session directory of Ray on that machine",
    )


def _ended(machine: Machine | None, name: str = "") -> ClusterError:
    where = name if machine is None else f"on machine {machine.address}"
    return ClusterError(
        f"the server {where} has ended: servers end with close(), and with the program that "
        "opened the dataset",
        remedy="open the dataset again, or keep the one open that was sent; "
        "open_dataset(detached=True) keeps servers beyond the program",
    )


def first_line(error: object) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [""])[0]
