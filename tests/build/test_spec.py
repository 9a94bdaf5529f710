from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overspill.build.describe import describe_build
from overspill.build.spec import ArraySpec, BuildSpec, EdgeSpec, NodeSpec
from overspill.errors import InputError
from overspill.settings import settings
from overspill.storage.json_files import parse_document, publish_json


class _Lazy:
    """A query that was not run, as polars has it."""

    def collect(self) -> None:
        """Run it."""


def test_a_spec_travels_as_one_line(tmp_path: Path) -> None:
    spec = describe_build(
        tmp_path / "out\nwith a break",
        edges=[tmp_path / "a.csv", str(tmp_path / "b.csv")],
        node_features={"x": tmp_path / "x.npy"},
        memory_limit="1GiB",
        columns=("from", "to"),
        num_nodes=5,
        edge_axis=0,
    )
    text = spec.to_json()
    assert "\n" not in text and BuildSpec.from_json(text) == spec
    assert spec.memory_limit_bytes == 1 << 30 and spec.edges[0].columns == ("from", "to")


@pytest.mark.parametrize("fill", [math.nan, math.inf, 0.5, 3, None])
def test_a_spec_travels_in_a_file_of_json(tmp_path: Path, fill: float | None) -> None:
    array = ArraySpec(paths=("x.parquet",), columns=("x",), key="id", fill=fill)
    spec = BuildSpec(
        out="/out",
        edges=(EdgeSpec(type=("a", "to", "a"), paths=("e.npy",)),),
        nodes={"a": NodeSpec(arrays={"x": array})},
    )
    publish_json(tmp_path / "plan", {"format": "plan", "version": 1, "spec": asdict(spec)})
    held = parse_document((tmp_path / "plan").read_bytes(), tmp_path, form="plan", version=1)
    found = BuildSpec.from_json(json.dumps(held["spec"], allow_nan=False))
    # NaN equals nothing, so what is compared is their text.
    assert repr(found) == repr(spec)


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = describe_build("out", edges="e.csv", node_features={"x": "x.npy"})
    assert spec.out == str(tmp_path / "out") and spec.edges[0].paths == (str(tmp_path / "e.csv"),)
    assert spec.nodes["node"].arrays == {"x": ArraySpec(paths=(str(tmp_path / "x.npy"),))}


def test_patterns_match_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt", "d[1].csv"):
        (tmp_path / name).touch()
    [edges] = describe_build("o", edges=tmp_path / "*.csv").edges
    names = [Path(path).name for path in edges.paths]
    assert names == ["a.csv", "b.csv", "d[1].csv"]
    exact = describe_build("o", edges=[tmp_path / "d[1].csv", tmp_path / "c.txt"])
    assert [Path(path).name for path in exact.edges[0].paths] == ["d[1].csv", "c.txt"]


def test_a_set_of_files_is_in_sorted_order() -> None:
    names = [f"{number:02}.csv" for number in range(40)]
    for files in (set(names), frozenset(map(Path, names))):
        [edges] = describe_build("o", edges=files).edges
        assert [Path(path).name for path in edges.paths] == names


def test_a_pattern_without_a_match_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file matches"):
        describe_build("o", edges=tmp_path / "*.csv")


def test_the_setting_limits_where_the_call_does_not() -> None:
    with settings(memory_limit_bytes="2GiB"):
        assert describe_build("o", edges="e.csv").memory_limit_bytes == 2 << 30
        assert describe_build("o", edges="e.csv", memory_limit=5).memory_limit_bytes == 5
    assert describe_build("o", edges="e.csv").memory_limit_bytes is None


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array])
def test_integers_of_numpy_travel_as_well(kind: Any) -> None:
    spec = describe_build(
        "o", edges="e.csv", num_nodes=kind(7), edge_axis=kind(1), memory_limit=kind(100)
    )
    assert BuildSpec.from_json(spec.to_json()) == spec
    assert (spec.nodes["node"].count, spec.edges[0].edge_axis) == (7, 1)
    assert spec.memory_limit_bytes == 100


@pytest.mark.parametrize("argument", ["out", "edges", "node_features"])
def test_a_path_with_a_nul_byte(argument: str) -> None:
    paths: dict[str, Any] = {"out": "o", "edges": "e.csv", "node_features": "x.npy"}
    paths[argument] = "a\0b"
    with pytest.raises(InputError, match=f"{argument}.*NUL byte"):
        describe_build(
            paths["out"], edges=paths["edges"], node_features={"x": paths["node_features"]}
        )


@pytest.mark.parametrize(
    "options",
    [
        {"ids": "hash"},
        {"layout": "coo"},
        {"edge_axis": 2},
        {"edge_axis": True},
        {"edge_axis": np.array([0, 1])},
        {"num_nodes": np.True_},
        {"num_nodes": np.float64(3)},
        {"num_nodes": np.int64(-1)},
        {"node_features": {5: "x.npy"}},
        {"num_nodes": -1},
        {"num_nodes": 2**63},
        {"columns": ("a",)},
        {"memory_limit": "a lot"},
        {"node_features": {"../x": "x.npy"}},
        {"node_features": {".x": "x.npy"}},
        {"node_features": {"": "x.npy"}},
        {"node_features": {"a/b": "x.npy"}},
    ],
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        describe_build("o", edges="e.csv", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"edges": np.zeros((2, 3))}, 'edges is a numpy ndarray.*numpy.save\\("edges.npy"'),
        ({"edges": torch.zeros(2, 3)}, "edges is a torch Tensor"),
        ({"edges": 5}, "edges is a builtins int, not the path"),
        ({"node_features": {"x": np.zeros(3)}}, "node_features\\['x'\\] is a numpy ndarray"),
        ({"node_features": "x.npy"}, 'node_features is a builtins str.*{"x": "x.npy"}'),
        ({"num_nodes": 3e3}, "num_nodes=3000.0 is not a number of nodes"),
        ({"num_nodes": "3000"}, "num_nodes='3000' is not a number of nodes"),
        ({"num_nodes": True}, "num_nodes=True is not a number of nodes"),
        ({"memory_limit": 1.5}, "memory_limit=1.5 is not a size"),
        ({"memory_limit": "lots"}, "memory_limit='lots' is not a size"),
        ({"columns": "from,to"}, "columns='from,to' is not two names"),
        ({"columns": (0, 1)}, "0 is no name.*without a header"),
        ({"edges": [(0, 1), (1, 2), (2, 0)]}, "edges is a builtins tuple.*numpy.array"),
        ({"edges": ["e.npy", [(0, 1)]]}, "edges is a builtins list.*numpy.array"),
        ({"edges": _Lazy()}, "edges is a test_spec _Lazy.*\\.collect\\(\\)"),
        ({"overwrite": True}, "a build has no option 'overwrite'.*one of num_nodes"),
    ],
)
def test_what_is_no_such_argument_says_what_is(arguments: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        describe_build("o", **{"edges": "e.csv", **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"num_nodes": {"nod": 9}},
        {"ids": {"nod": "remap"}},
    ],
)
def test_a_type_that_neither_edges_nor_arrays_name_is_a_slip(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="'nod', which"):
        describe_build("o", edges="e.csv", **options)
