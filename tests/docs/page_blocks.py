"""The code blocks of a page, and what is to be done with each.

A page is Markdown. Of its fenced blocks:

- ``python`` runs, in the order of the page and in one namespace; with ``title="NAME.py"`` it is
  written to that file instead, for a command to run;
- ``console``: its lines after ``$ `` run in a shell (a line that ends in a backslash goes on); the
  others show what they print, and are not compared;
- ``text title="prints"`` is what the block before it prints; ``...`` stands for anything;
- ``json`` is parsed;
- ``text`` is left alone: a diagram, or what cannot run here.

``<!-- exits 1 -->`` on the line before a console block tells the status that its last command ends
with. Any other language is refused, so that no block goes unchecked by mistake.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ON_CLUSTER = (ROOT / "docs/how-to/several-machines.md",)
LANGUAGES = ("python", "console", "text", "json")
_FENCE = re.compile(
    r"(?:^[ ]*<!-- exits (?P<status>\d+) -->\n+)?"
    r"^(?P<indent>[ ]*)(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)\n"
    r"(?P<body>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_TITLE = re.compile(r'title="([^"]*)"')


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: The first word after the fence; "" without one.
        title: Its title; "" without one.
        code: What it holds, without the page's indentation.
        line: The line of the page on which it begins, from 1.
        status: What its last command exits with.
    """

    language: str
    title: str
    code: str
    line: int
    status: int = 0

    @property
    def kind(self) -> str:
        """What is to be done with it: run, shell, file, prints, json or nothing."""
        if self.language == "python":
            return "file" if self.title else "run"
        if self.language == "text":
            return "prints" if self.title == "prints" else "nothing"
        return {"console": "shell", "json": "json"}[self.language]

    def commands(self) -> list[str]:
        """The commands of a console block."""
        found: list[str] = []
        goes_on = False
        for line in self.code.splitlines():
            if goes_on:
                found[-1] += "\n" + line
            elif line.startswith("$ "):
                found.append(line[2:])
            else:
                continue
            goes_on = line.endswith("\\")
        return found


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [_block(text, match) for match in _FENCE.finditer(text)]


def _block(text: str, match: re.Match[str]) -> Block:
    language, _, rest = match["info"].strip().partition(" ")
    title = _TITLE.search(rest)
    return Block(
        language,
        title[1] if title else "",
        textwrap.dedent(match["body"]),
        text.count("\n", 0, match.start("body")) + 1,
        int(match["status"] or 0),
    )


def matches(printed: str, shown: str) -> bool:
    """Whether something was printed as a page shows it, ``...`` standing for anything."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None
