"""Every Python block of the README runs as it stands, from a clone."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_readme_runs(block: str, tmp_path: Path) -> None:
    cora = "src/overspill/cli/demo/cora"
    shutil.copytree(ROOT / cora, tmp_path / cora)
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_ten_lines_are_ten() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line]) == 10
    assert len(BLOCKS) == 6
