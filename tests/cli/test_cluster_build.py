"""What the words of ``overspill cluster build`` and its stages mean; the rest needs a cluster."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer

from overspill import cluster
from overspill.build import Columns
from overspill.cli.cluster.build import build, finalise, init, partition
from overspill.cli.cluster.build_options import asked_for
from overspill.cluster import build as build_call
from overspill.cluster import init_build
from overspill.cluster.building import nodes
from typed_command import in_a_process as command

GIVEN: dict[str, Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(asked_for).parameters.items()
    if parameter.default is not inspect.Parameter.empty
} | {"out": "/parts", "edges": ["e.npy"], "parts": 3}


def test_every_word_reaches_the_call() -> None:
    asked = asked_for(
        **GIVEN
        | {
            "edges": ["user:buys:item=10.0.0.7:/data/*.parquet", "user:buys:item=/more.npy"],
            "node_features": ["user.x=10.0.0.7:/data/x.npy"],
            "edge_features": ["user:buys:item.w=::price,count", "user:buys:item.t=/t.npy"],
            "num_nodes": ["user=7", "item=9"],
            "columns": ["user:buys:item=from,to"],
            "layout": "csc,csr",
            "method": "hash",
            "edge_ids": True,
        }
    )
    buys = ("user", "buys", "item")
    assert asked["edges"] == {buys: ["10.0.0.7:/data/*.parquet", "/more.npy"]}
    assert asked["node_features"] == {"user": {"x": "10.0.0.7:/data/x.npy"}}
    assert asked["edge_features"] == {buys: {"w": Columns(["price", "count"]), "t": "/t.npy"}}
    assert asked["num_nodes"] == {"user": 7, "item": 9}
    assert asked["columns"] == {buys: ("from", "to")}
    assert asked["layout"] == ("csc", "csr") and asked["num_parts"] == 3
    assert asked["method"] == "hash" and asked["edge_ids"] is True


def test_what_is_left_out_means_what_the_call_means() -> None:
    asked = asked_for(**GIVEN)
    plain = {name: value for name, value in asked.items() if value not in (None, {})}
    assert plain == {
        "out": "/parts",
        "edges": ["e.npy"],
        "num_parts": 3,
        "method": "range",
        "layout": ("csc",),
        "to_undirected": False,
        "edge_ids": False,
        "sort_within_row": True,
        "duplicates": "keep",
        "self_loops": "keep",
        "non_finite": "keep",
    }
    assert inspect.signature(build_call).parameters["method"].default == "range"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("method", "metis"),
        ("layout", "coo"),
        ("duplicates", "sum"),
        ("self_loops", "add"),
        ("non_finite", "drop"),
        ("num_nodes", ["many"]),
    ],
)
def test_a_word_that_means_nothing_is_wrong_usage(option: str, value: Any) -> None:
    with pytest.raises(typer.BadParameter):
        asked_for(**GIVEN | {option: value})


def test_the_stages_take_what_their_calls_take() -> None:
    shown = {"address", "progress", "as_json", "memory_limit"}
    assert list(inspect.signature(build).parameters) == [
        *inspect.signature(asked_for).parameters,
        *("memory_limit", "address", "progress", "as_json"),
    ]
    assert set(inspect.signature(init).parameters) == set(GIVEN) | {"address", "progress"}
    for stage in (partition, finalise):
        assert set(inspect.signature(stage).parameters) <= {"out"} | shown
    assert set(inspect.signature(init_build).parameters) == (
        set(inspect.signature(build_call).parameters) - {"memory_limit"}
    )


def test_what_to_build_reaches_the_stage_beside_its_own_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(nodes, "connect", calls.append)
    monkeypatch.setattr(cluster, "init_build", lambda **asked: calls.append(asked))
    init(out="/parts", edges=["e.npy"], parts=3, method="hash", address="here", progress=False)
    where, asked = calls
    assert where == "here" and asked.pop("progress")
    assert asked == asked_for(**GIVEN | {"method": "hash"})
    assert capsys.readouterr().out == "/parts: the same build is complete already\n"


@pytest.mark.parametrize(
    ("staged", "told"), [(True, "every split is staged"), (False, "all parts are built already")]
)
def test_partition_tells_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, staged: bool, told: str
) -> None:
    monkeypatch.setattr(nodes, "connect", lambda _: None)
    monkeypatch.setattr(cluster, "partition_build", lambda *_, **__: staged)
    partition("/parts", progress=False)
    assert capsys.readouterr().out == f"/parts: {told}\n"


def test_the_group_lists_its_verbs() -> None:
    told = command("cluster", "--help").stdout
    for verb in ("plan", "build", "init", "partition", "finalise"):
        assert f"\n  {verb} " in told
    command("cluster", "build", "--edges", "e.npy", "--out", "o", code=2)
