"""What pyproject.toml claims to work with is what the lane of lowest versions runs."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BOUND = re.compile(r"([\w-]+)>=([\d.]+)")


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    held = [line for line in lines if line and not line.startswith("#")]
    return dict(line.split("==") for line in held)


def claimed() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["pyg"]]
    return dict(match.groups() for match in map(_BOUND.fullmatch, needed) if match is not None)


def test_every_lower_bound_is_the_version_that_the_lane_installs() -> None:
    bounds, lowest = claimed(), pinned("constraints-min.txt")
    assert {"torch", "numpy", "torch_geometric"} <= set(bounds)
    assert {name: lowest[name.replace("_", "-")] for name in bounds} == bounds


def test_the_lane_is_older_than_what_is_developed_with() -> None:
    lowest, newest = pinned("constraints-min.txt"), pinned("constraints.txt")
    for name in claimed():
        name = name.replace("_", "-")
        assert version(lowest[name]) <= version(newest[name])


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def test_nothing_goes_through_pandas_which_need_not_be_there() -> None:
    """In pyarrow 16 `to_pandas_dtype` imports it."""
    for path in (ROOT / "src").rglob("*.py"):
        code = ast.walk(ast.parse(path.read_text()))
        named = {node.attr for node in code if isinstance(node, ast.Attribute)}
        assert not {"to_pandas", "to_pandas_dtype"} & named, path
