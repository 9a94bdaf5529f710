"""Fills the page of the command with its verbs and options, taken from the command itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from overspill.cli.app import app

MARK = "<!-- the verbs of the command -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return markdown.replace(MARK, described()) if MARK in markdown else markdown


def described() -> str:
    """Every verb: what it does, how it is called, what it takes."""
    group = typer.main.get_command(app)
    context = group.make_context("overspill", [], resilient_parsing=True)
    return "\n\n".join([_options(group, context), *_verbs(group, context)])


def _verbs(group: Any, context: Any) -> Iterator[str]:
    """The verbs of a group, each followed by its own, if it is a group itself."""
    for name in group.list_commands(context):
        verb = group.get_command(context, name)
        inner = verb.make_context(name, [], parent=context, resilient_parsing=True)
        yield _verb(verb, inner)
        if hasattr(verb, "list_commands"):
            yield from _verbs(verb, inner)


def _verb(verb: Any, context: Any) -> str:
    usage = " ".join([context.command_path, *verb.collect_usage_pieces(context)])
    told = inspect.cleandoc(verb.help or "").split("\n\n")
    parts = [f"## {context.command_path}", f"```text\n{usage}\n```", *map(_text, told)]
    return "\n\n".join([*parts, _options(verb, context)])


def _options(command: Any, context: Any) -> str:
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [f"| `{names}` | {_text(told)} |" for names, told in filter(None, records)]
    return "\n".join(["| option | what it does |", "| --- | --- |", *rows])


def _text(told: str) -> str:
    """Help text as Markdown means it: no tags, no columns."""
    plain = " ".join(told.split())
    for mark in ("<", "|", "*", "[", "]", "_"):
        plain = plain.replace(mark, f"&#{ord(mark)};")
    return plain
