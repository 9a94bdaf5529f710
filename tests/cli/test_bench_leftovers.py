"""What a killed bench left is named by the next; what runs is not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from overspill.cli.bench import run
from overspill.cli.bench.leftovers import leftovers
from overspill.cli.bench.place import place_for
from overspill.cli.bench.sizes import Sizes
from overspill.errors import DiskRefusedError

KIB = 1 << 10
SMALL = Sizes(
    write_bytes=KIB, read_bytes=KIB, edges=1, random_seconds=0.1, rounds=1, most_seconds=1.0
)
SCRIPT = """
import os, signal, sys
from pathlib import Path
from overspill.cli.bench.leftovers import marked_running
work = Path(sys.argv[1]) / "overspill-bench-a b"
work.mkdir()
with marked_running(work):
    (work / "rows").write_bytes(bytes(300 << 10))
    os.sync()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=False)
    assert done.returncode == -9
    return tmp_path / "overspill-bench-a b"


def test_what_a_killed_bench_left_is_told_with_its_size(killed: Path) -> None:
    (killed.parent / "overspill-bench-new").mkdir()  # one that has only just begun
    (killed.parent / "overspill-bench-file").write_text("x")
    with place_for(killed.parent, SMALL) as work:
        (work / "rows").write_bytes(bytes(64 * KIB))
        left = leftovers(killed.parent)
    assert list(left.sizes) == [killed] and left.sizes[killed] >= 300 * KIB
    assert left.command() == f"rm -r '{killed}'" and f"{killed} (30" in left.told()
    (told,) = run._left(killed.parent)
    assert told.about == "leftovers" and told.remedy == left.command()
    assert killed.exists()  # named, never removed


def test_a_disk_without_room_names_what_would_make_some(killed: Path) -> None:
    with (
        pytest.raises(DiskRefusedError) as caught,
        place_for(killed.parent, replace(SMALL, write_bytes=1 << 60)),
    ):
        pass
    assert f"rm -r '{killed}'" in str(caught.value) and "KiB" in str(caught.value.remedy)
