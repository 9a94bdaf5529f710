"""Lines and tables keep to a width, and numbers stay whole."""

from __future__ import annotations

import ast
import os
import pty
import struct
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from overspill import cli
from overspill.cli.lines import columns_of, counted, glued, harmless, table, wrapped

ROWS = [("user: 3 users",), ("  x", "float16", "3 x 1,433", "8.4 KiB"), ("  long name", "", "", "")]


def test_a_line_breaks_between_words_and_goes_on_below_its_text() -> None:
    text = "  disk  needs " + glued("41.0 GiB") + ", " + glued("60.2 GiB free")
    below = " " * 8
    assert wrapped(text, 23, indent=6) == f"  disk  needs 41.0 GiB,\n{below}60.2 GiB free"
    assert wrapped(text, 22, indent=6).splitlines()[:2] == ["  disk  needs", f"{below}41.0 GiB,"]
    assert wrapped(text, None) == "  disk  needs 41.0 GiB, 60.2 GiB free"
    assert wrapped("one\n  two words", 8, indent=1) == "one\n  two\n   words"


def test_what_cannot_break_stays_whole() -> None:
    path = "/a/very/long/path-with-hyphens/of/forty/characters"
    assert wrapped(f"see {path} there", 20).splitlines() == ["see", path, "there"]


def test_a_table_is_aligned_where_it_fits() -> None:
    lines = table([("name", "size"), ("a", "1 B"), ("bcdef", "12 B")], 40, right=(1,)).splitlines()
    assert lines == ["name   size", "a       1 B", "bcdef  12 B"]


@pytest.mark.parametrize("columns", [20, 30, 40])
def test_a_narrow_table_puts_cells_below_each_other(columns: int) -> None:
    told = table([*ROWS, ("  y", "int64", "1,000,000,000", "7.5 GiB")], columns)
    assert max(map(len, told.splitlines())) <= columns
    for cell in ("float16", "3 x 1,433", "8.4 KiB", "1,000,000,000", "7.5 GiB"):
        assert any(cell in line for line in told.splitlines())


def test_a_table_without_a_terminal_is_as_wide_as_it_needs() -> None:
    told = table([("n" * 90, "x" * 90)], None)
    assert told == "n" * 90 + "  " + "x" * 90


def test_a_terminal_has_a_width_and_a_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", None)
    outer, inner = pty.openpty()
    with os.fdopen(outer, "wb"), os.fdopen(inner, "w") as stream:
        ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", 24, 40, 0, 0))
        assert columns_of(stream) == 40
    with open(os.devnull, "w") as stream:  # noqa: PTH123
        assert columns_of(stream) is None and columns_of(None) is None
        monkeypatch.setenv("COLUMNS", "33")
        assert columns_of(stream) == 33
        monkeypatch.setenv("COLUMNS", "1")
        assert columns_of(stream) == 20


def test_words() -> None:
    assert (counted(1, "file"), counted(1200, "file")) == ("1 file", "1,200 files")
    assert harmless("a\x1b[2Jb\u202e") == "a\\x1b[2Jb\\u202e"


def test_no_function_of_the_command_is_there_twice() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(Path(cli.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                body = node.body[ast.get_docstring(node) is not None :]
                text = ast.dump(node.args) + "".join(ast.dump(one) for one in body)
                found.setdefault(text, []).append(f"{path.name}: {node.name}")
    assert [names for names in found.values() if len(names) > 1] == []
