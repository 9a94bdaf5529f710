"""Help on a terminal of any width: where it is narrow, an option's text stands below its name.

The library that writes help takes 50 columns for the least there are, and breaks long words.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from overspill.cli.lines import columns_of, say, wrapped
from overspill.cli.streams import forget_reader

_ROOM_FOR_TWO_COLUMNS = 60
CLOSED_PIPE = 128 + signal.SIGPIPE
_Context: Any = TyperCommand.context_class
_Formatter: Any = _Context.formatter_class


class _HelpFormatter(_Formatter):  # type: ignore[misc]
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._columns = columns_of(sys.stdout)
        if self._columns is not None and self._columns < _ROOM_FOR_TWO_COLUMNS:
            self.width = self._columns

    def write_dl(self, rows: Iterable[tuple[str, str]], *arguments: Any, **options: Any) -> None:
        if self.width >= _ROOM_FOR_TWO_COLUMNS or self._columns is None:
            super().write_dl(rows, *arguments, **options)
            return
        before = " " * self.current_indent
        for name, text in rows:
            self.write(wrapped(f"{before}{name}", self._columns, indent=2) + "\n")
            if text:
                self.write(wrapped(f"{before}    {text}", self._columns) + "\n")


class _HelpContext(_Context):  # type: ignore[misc]
    formatter_class = _HelpFormatter


class _EndsWithItsReader:
    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Where help and version are written: a closed pipe is no error, a full disk is one."""
        try:
            return super().make_context(*arguments, **options)  # type: ignore[misc]
        except BrokenPipeError:
            forget_reader()
            raise typer.Exit(CLOSED_PIPE) from None
        except OSError as error:
            forget_reader()
            say(f"overspill: {error.strerror or error}", err=True, indent=2)
            raise typer.Exit(1) from None


class Verb(_EndsWithItsReader, TyperCommand):
    """One verb."""

    context_class = _HelpContext


class Verbs(_EndsWithItsReader, TyperGroup):
    """All of them."""

    context_class = _HelpContext
