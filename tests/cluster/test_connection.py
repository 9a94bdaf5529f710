"""A connection that Ray refuses, that is lost, or asked for twice: no cluster is needed."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("ray")

import ray
from ray.exceptions import ActorDiedError, GetTimeoutError, RaySystemError, RayTaskError

from overspill.cluster import connection, machines, survey
from overspill.cluster.connection import Connection
from overspill.cluster.layout import Layout, Machine
from overspill.errors import ClusterError

LAYOUT = cast(
    "Layout",
    SimpleNamespace(
        path="/d", opened_by="another", machines=(Machine("n", "10.0.0.2", "s-0", (3,), True),)
    ),
)


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (RaySystemError("bad token\nand a stack"), "refused: .*bad token.*TOKEN"),
        (ConnectionError("nobody there"), "no Ray cluster can be reached at this machine: nobody"),
    ],
)
def test_a_cluster_that_refuses_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception, told: str
) -> None:
    def init(**_: Any) -> None:
        raise refusal

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterError, match=told):
        connection.start_ray(None)


def test_of_threads_that_connect_at_the_same_time_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    connected, meet, started = threading.Event(), threading.Barrier(2), []

    def met(_: str | None) -> None:
        meet.wait(120)  # both have seen that there is no connection

    def init(**_: Any) -> None:
        if connected.is_set():
            raise RuntimeError("Maybe you called ray.init twice by accident?")
        connected.set()

    def connect() -> None:
        started.append(connection.start_ray("10.0.0.1:6379"))

    monkeypatch.setattr(connection, "_require_answer", met)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", connected.is_set)
    threads = [threading.Thread(target=connect) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started) == [False, True]


class Server:
    """An actor that has died and keeps its name: it answers every request with its death."""

    def __init__(self) -> None:
        self.asked = 0
        self.gather = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.ask))

    def ask(self) -> object:
        self.asked += 1
        return object()


def test_a_server_that_stays_dead_is_asked_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, clock = Server(), [100.0]

    def get(*_: Any, timeout: float) -> None:
        clock[0] += 1.0
        if server.asked > 20:
            raise GetTimeoutError("it never ends")
        raise ActorDiedError()

    monkeypatch.setattr(connection, "require_connected", lambda: None)
    monkeypatch.setattr(connection, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(ray, "get_actor", lambda *_, **__: server)
    monkeypatch.setattr(ray, "get", get)
    asking = Connection(LAYOUT, deadline_s=5.0)
    with pytest.raises(ClusterError, match=r"machine 10.0.0.2 .*serves part 3 .*ActorDiedError"):
        asking.receive(asking.send(0, "gather"))
    assert 2 < server.asked < 10


def test_a_forked_child_ends_none_of_its_parents_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[Any] = []
    running = machines._Running()
    monkeypatch.setattr(machines, "_RUNNING", running)
    monkeypatch.setattr(machines, "_name", lambda machine: ("worker", machine.server))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "kill", lambda handle, **_: killed.append(handle))
    for forked in (True, False):
        running.handles["worker", "s-0"] = "the server"
        running.users["worker", "s-0"] = 1
        monkeypatch.setitem(connection._AFTER_FORK, "forked", forked)
        machines.end_servers(LAYOUT, detached=True)
        assert killed == ([] if forked else ["the server"])


def test_a_copy_of_a_partition_has_servers_of_its_own() -> None:
    names = {machines._prefix("a" * 32, path, True) for path in ("/slow/parts", "/fast/parts")}
    assert len(names) == 2
    assert machines._prefix("a" * 32, "/slow/parts", True) in names


def test_a_machine_that_cannot_look_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: Any, **__: Any) -> None:
        cause = ModuleNotFoundError("No module named 'overspill'")
        raise RayTaskError("find_parts", "Traceback of\nmany lines", cause)

    monkeypatch.setattr(ray, "get", get)
    told = survey._answer(object()).problems[None]
    assert told == "no answer: ModuleNotFoundError: No module named 'overspill'"
