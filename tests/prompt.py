"""The command as it is typed, in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from overspill.cli.app import app


def typed(*arguments: object, code: int = 0, columns: int | None = None) -> Result:
    """Run the command; its output and errors apart, its exit status compared.

    Args:
        arguments: What follows "overspill".
        code: The exit status that is wanted.
        columns: The terminal's width; None: no terminal.
    """
    environment = {"COLUMNS": None if columns is None else str(columns)}
    done = CliRunner().invoke(app, [str(one) for one in arguments], env=environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def as_json(*arguments: object, code: int = 0) -> Any:
    """The one JSON object that a verb prints."""
    return json.loads(typed(*arguments, "--json", code=code).stdout)


def require_narrow(text: str, columns: int) -> None:
    """Assert that lines keep to a width, but for words that have no place to break."""
    for line in text.splitlines():
        assert len(line) <= columns or " " not in line.strip(), line
