"""Every code block of the README and of the documentation runs as it stands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from page_blocks import LANGUAGES, ROOT, Block, blocks_of, matches, pages

CORA = Path("src/overspill/cli/demo/cora")
APART = ("README.md", "docs/index.md")  # of these, each block is read by itself
PAGES = [
    page for page in pages() if any(b.language in ("python", "console") for b in blocks_of(page))
]


class Runner:
    """Runs pages, one at a time, in forks of one process."""

    def __init__(self) -> None:
        bin_directory = str(Path(sys.executable).parent)
        path = os.pathsep.join([bin_directory, os.environ.get("PATH", os.defpath)])
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("page_runner.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Threads that wait leave the processors to the tests that run beside.
            env={**os.environ, "PATH": path, "OMP_WAIT_POLICY": "passive"},
        )

    def run(self, page: Path, blocks: list[Block], place: Path) -> None:
        """Run the blocks of a page where a clone has Cora, and nothing else; raise what fails."""
        directory = place / "work"
        shutil.copytree(ROOT / CORA, directory / CORA)
        runnable = [block for block in blocks if block.kind in ("run", "shell", "file")]
        request = {
            "page": str(page),
            "directory": str(directory),
            "report": str(place / "report"),
            "apart": page in [ROOT / name for name in APART],
            "blocks": [
                {**asdict(block), "kind": block.kind, "commands": block.commands()}
                for block in runnable
            ],
        }
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        for block, done in zip(runnable, answer["blocks"], strict=False):
            assert not done["problem"], (
                f"{page.name}:{block.line}: {done['problem']}\n{done['out']}{done['err']}"
            )
        assert answer["status"] == 0, f"{page.name}: the page ended with {answer['status']}"
        assert len(answer["blocks"]) == len(runnable), f"{page.name}: not every block was run"
        self._compare(page, blocks, [done["out"] for done in answer["blocks"]])

    def _compare(self, page: Path, blocks: list[Block], printed: list[str]) -> None:
        outputs, last = iter(printed), ""
        for block in blocks:
            if block.kind in ("run", "shell", "file"):
                last = next(outputs)
            elif block.kind == "prints":
                assert matches(last, block.code), f"{page.name}:{block.line}: prints\n{last}"

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    held = Runner()
    yield held
    held.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_runs(page: Path, runner: Runner, tmp_path: Path) -> None:
    runner.run(page, blocks_of(page), tmp_path)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_goes_unchecked(page: Path) -> None:
    before = ""
    for block in blocks_of(page):
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: {block.language!r} is none of {LANGUAGES}"
        if block.kind == "json":
            json.loads(block.code)
        if block.kind == "shell":
            assert block.commands(), f"{where}: no line begins with '$ '"
        if block.kind == "file":
            assert _is_run_by_something(page, block), f"{where}: nothing runs {block.title}"
        if block.kind == "prints":
            assert before in ("run", "shell"), f"{where}: nothing before it prints"
        before = block.kind


def _is_run_by_something(page: Path, block: Block) -> bool:
    """A command or an import of the page, or a test that reads it from there."""
    name = block.title.removesuffix(".py")
    here = [one.code for one in blocks_of(page) if one.kind in ("run", "shell")]
    tests = [test.read_text() for test in Path(__file__).parent.glob("test_[!p]*.py")]
    return any(name in code for code in here) or any(f'"{page.stem}' in test for test in tests)


def test_ten_lines_of_the_readme_are_ten() -> None:
    first = next(block for block in blocks_of(ROOT / "README.md") if block.kind == "run")
    assert len([line for line in first.code.splitlines() if line]) == 10


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", "AssertionError"),
        ("```console\n$ true\n$ false\n```\n", "exit status 1 instead of 0: false"),
        ("<!-- exits 3 -->\n```console\n$ exit 4\n```\n", "exit status 4 instead of 3"),
        ('```python\nprint(1)\n```\n\n```text title="prints"\n2\n```\n', "page.md:6: prints"),
        ("```python\nimport os\nos.kill(os.getpid(), 9)\n```\n", "ended with -9"),
    ],
)
def test_a_block_that_fails_is_told(
    text: str, problem: str, runner: Runner, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=problem):
        runner.run(page, blocks_of(page), tmp_path)


def test_files_commands_and_what_is_printed_go_together(runner: Runner, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```python title="job.py"\nprint(6 * 7)\n```\n\n'
        "```console\n$ python \\\n    job.py\n42\n```\n\n"
        '```text title="prints"\n4...\n```\n\n'
        "??? note\n\n    <!-- exits 1 -->\n    ```console\n    $ ls src && false\n    ```\n"
    )
    kinds = [(block.kind, block.status) for block in blocks_of(page)]
    assert kinds == [("file", 0), ("shell", 0), ("prints", 0), ("shell", 1)]
    runner.run(page, blocks_of(page), tmp_path)


def test_names_of_one_block_are_known_to_the_next_and_not_to_another_page(
    runner: Runner, tmp_path: Path
) -> None:
    for name, text in (
        ("one", "```python\nheld = 1\n```\n\n```python\nprint(held)\n```\n"),
        ("two", "```python\nassert 'held' not in globals()\n```\n"),
    ):
        place = tmp_path / name
        place.mkdir()
        page = place / "page.md"
        page.write_text(text)
        runner.run(page, blocks_of(page), place)
