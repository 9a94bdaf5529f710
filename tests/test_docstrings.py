"""Holds that docstrings are true of names: parameters, fields, errors and references there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from test_architecture import SOURCE, modules

# PyTorch's and PyTorch Geometric's.
OTHERS = {"torch.multinomial", "NodeLoader", "LinkLoader"}
Documented = ast.FunctionDef | ast.ClassDef


def names_in(tree: ast.AST) -> Iterator[str]:
    """What code calls things, words of short texts included: arrays and keys are named so."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for name in ("id", "attr", "arg", "name", "asname", "module"):
            held = getattr(node, name, None)
            if isinstance(held, str):
                yield from held.split(".")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield from re.findall(r"\w+", node.value if len(node.value) < 60 else "")


NAMES = {name for path in modules() for name in names_in(ast.parse(path.read_text()))}


def documented() -> Iterator[tuple[str, Documented, str]]:
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = ast.get_docstring(node)
                if text is not None:
                    yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node, text


def listed(text: str, section: str) -> set[str]:
    """The names that a section of a docstring explains."""
    found = re.search(rf"^{section}:\n((?:[ ]+.*\n|\n)*)", text + "\n", re.MULTILINE)
    if found is None:
        return set()
    lines = [line for line in found[1].split("\n") if line.strip()]
    depth = len(lines[0]) - len(lines[0].lstrip())
    entries = [line for line in lines if len(line) - len(line.lstrip()) == depth]
    named = [re.match(r"\s*\*{0,2}([\w, ]+?)(?: \([^)]*\))?:", entry) for entry in entries]
    assert all(named), f"an entry of {section} has no name: {entries}"
    return {name for one in named if one for name in one[1].split(", ")}


def parameters(node: Documented) -> set[str] | None:
    """Those of a function, or of a class's `__init__`; None where they are another's by ``**``."""
    made = [node] if isinstance(node, ast.FunctionDef) else node.body
    for one in made:
        if isinstance(one, ast.FunctionDef) and (one is node or one.name == "__init__"):
            given = one.args
            if given.kwarg is not None:
                return None
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg]
            return {each.arg for each in every if each is not None} - {"self", "cls"}
    return None


def fields(node: Documented) -> set[str] | None:
    """What a data class holds that others may see; None for what is none."""
    if not any("dataclass" in ast.unparse(one) for one in node.decorator_list):
        return None
    held = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    return {name for name in held if not name.startswith("_")}


def test_arguments_are_those_there_are() -> None:
    for place, node, text in documented():
        told, there = listed(text, "Args"), parameters(node)
        if told and there is not None:
            assert told == there, place


def test_attributes_are_the_fields_and_what_a_class_sets() -> None:
    for place, node, text in documented():
        told, there = listed(text, "Attributes"), fields(node)
        if told and there is not None:
            computed = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
            assert told - computed == there, place


def test_errors_and_references_lead_somewhere() -> None:
    for place, _, text in documented():
        named = {*re.findall(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)", text), *listed(text, "Raises")}
        for name in named - OTHERS:
            assert name.rpartition(".")[2] in NAMES, f"{place}: {name}"


@pytest.mark.parametrize(
    ("section", "names"),
    [("Args", {"a", "b", "more", "options"}), ("Raises", {"OSError"}), ("Attributes", set())],
)
def test_sections_are_read_as_they_are_written(section: str, names: set[str]) -> None:
    text = (
        "Do it.\n\nArgs:\n    a, b: Two,\n        of them: long.\n    *more: Others.\n\n"
        "    **options: The rest.\n\nRaises:\n    OSError: It fails.\n"
    )
    assert listed(text, section) == names
