"""Runs the code blocks of pages, as they stand and in their order."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from page_blocks import ROOT, Block, matches

CORA = Path("src/overspill/cli/demo/cora")
# Of these, each block is read by itself.
APART = ("README.md", "docs/index.md", "docs/inputs-and-loaders.md")


class Runner:
    """Runs pages, one at a time, in forks of one process.

    Args:
        env: Variables of their environment, beside those there are.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        bin_directory = str(Path(sys.executable).parent)
        path = os.pathsep.join([bin_directory, os.environ.get("PATH", os.defpath)])
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("page_runner.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Threads that wait leave the processors to the tests that run beside.
            env={**os.environ, "PATH": path, "OMP_WAIT_POLICY": "passive", **(env or {})},
        )

    def run(self, page: Path, blocks: list[Block], place: Path) -> list[str]:
        """Run the blocks of a page where a clone has Cora, and nothing else; raise what fails.

        Returns:
            What each of those that run has printed.
        """
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
        printed = [done["out"] for done in answer["blocks"]]
        self._compare(page, blocks, printed)
        return printed

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
