"""The reference names everything that is public, and says of it what is true."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import fields
from types import ModuleType
from typing import Any

import pytest
import typer
from page_blocks import ROOT

import overspill
import overspill.cluster
import overspill.errors
import overspill.pyg
from overspill.cli.app import app
from overspill.settings import _VARIABLES, Settings

REFERENCE = ROOT / "docs" / "reference"
SHOWN = [
    name
    for page in sorted(REFERENCE.glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]


@pytest.fixture(scope="module")
def commands() -> ModuleType:
    spec = importlib.util.spec_from_file_location("commands", ROOT / "docs/hooks/commands.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("package", "room"), [(overspill, ""), (overspill.pyg, "pyg."), (overspill.cluster, "cluster.")]
)
def test_every_public_name_has_its_entry(package: ModuleType, room: str) -> None:
    wanted = {f"overspill.{room}{name}" for name in package.__all__ if name != "__version__"}
    assert wanted <= set(SHOWN)


def test_what_is_shown_is_there_and_once() -> None:
    assert len(SHOWN) == len(set(SHOWN))
    for name in SHOWN:
        module, _, attribute = name.rpartition(".")
        held = importlib.import_module(name if name == "overspill.errors" else module)
        assert name == "overspill.errors" or hasattr(held, attribute), name


def test_every_setting_is_listed_with_its_variable() -> None:
    rows = re.findall(r"^\| `(\w+)`<br>`(\w+)` \|", _text("settings"), re.MULTILINE)
    assert dict(rows) == {field.name: _VARIABLES[field.name][0] for field in fields(Settings)}
    for _, *others in _VARIABLES.values():
        assert all(other in _text("settings") for other in others)


def test_every_error_is_listed_with_the_built_in_that_it_is() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", _text("errors"), re.MULTILINE))
    base = overspill.errors.OverspillError
    leaves = [
        kind
        for kind in vars(overspill.errors).values()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base
    ]
    assert rows == {leaf.__name__: leaf.__bases__[-1].__name__ for leaf in leaves}


def test_the_page_of_the_command_has_every_verb_and_option(commands: ModuleType) -> None:
    told = commands.on_page_markdown(_text("command"))
    assert commands.MARK not in told
    for name, verb in verbs_of(typer.main.get_command(app), "overspill"):
        part = told.split(f"## {name}\n")[1].split("\n## ")[0]
        for parameter in verb.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert option in part or option.upper() in part, (name, option)


def verbs_of(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every verb by how it is called, those of a verb that is a group too."""
    for name, verb in group.commands.items():
        yield f"{path} {name}", verb
        if hasattr(verb, "commands"):
            yield from verbs_of(verb, f"{path} {name}")


def test_verbs_of_a_verb_are_told_after_it(
    commands: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, outer = typer.Typer(help="Holds others."), typer.Typer()

    @inner.command()
    def deep(size: int = 3) -> None:
        """Lie deep."""

    @outer.command()
    def flat() -> None:
        """Lie flat."""

    inner.command("other")(flat)
    outer.add_typer(inner, name="group")
    monkeypatch.setattr(commands, "app", outer)
    told = commands.described()
    heads = [line for line in told.splitlines() if line.startswith("## ")]
    assert heads == [
        "## overspill flat",
        "## overspill group",
        "## overspill group deep",
        "## overspill group other",
    ]
    assert "--size" in told.split("## overspill group deep")[1].split("## ")[0]


def test_a_page_without_the_mark_is_left_alone(commands: ModuleType) -> None:
    assert commands.on_page_markdown("# Title") == "# Title"


def test_help_texts_cannot_break_the_page(commands: ModuleType) -> None:
    told = commands._text("[TYPE.]NAME=<FILE> | *.npy")
    assert not set("<|*[]") & set(told)
    assert "FILE" in told


def _text(page: str) -> str:
    return (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
