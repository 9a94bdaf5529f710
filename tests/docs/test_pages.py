"""Every code block of the README and of the documentation runs as it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_blocks import LANGUAGES, ON_CLUSTER, ROOT, Block, blocks_of, pages
from page_running import Runner

# Those of a cluster are run by tests/cluster, beside whatever else needs one.
PAGES = [
    page
    for page in pages()
    if page not in ON_CLUSTER and any(b.language in ("python", "console") for b in blocks_of(page))
]


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
    here_too = [
        *Path(__file__).parent.glob("test_[!p]*.py"),
        *(ROOT / "tests/cluster").glob("*.py"),
    ]
    tests = [test.read_text() for test in here_too]
    return any(name in code for code in here) or any(f'"{page.stem}' in test for test in tests)


@pytest.mark.parametrize("page", ON_CLUSTER, ids=lambda page: page.stem)
def test_a_page_of_a_cluster_shows_the_examples(page: Path) -> None:
    """So that its tests run them too."""
    shown = {block.title: block.code for block in blocks_of(page) if block.kind == "file"}
    assert shown
    assert {name: (ROOT / "examples" / name).read_text() for name in shown} == shown


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
