"""A parent holds its run until the children it started have joined it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overspill.settings import child_environment
from overspill.storage.leases import reclaim_dead_runs
from spilling import spill_files

RECLAIM = """
import sys
from pathlib import Path
from overspill.storage.leases import reclaim_dead_runs
print(len(reclaim_dead_runs(Path(sys.argv[1]))), end="")
"""

# The parent's own code ends right after the start. The child waits until the parent is on its way
# out, has a stranger look for dead runs, and joins only then, by the handle or by the environment.
SCRIPT = """
import atexit, multiprocessing, os, subprocess, sys
from pathlib import Path

place, fifo, answer, method, reclaim = sys.argv[1:]
kept = []


def look():
    with open(fifo) as parent:
        assert parent.read() == "leaving"
    argv = [sys.executable, "-c", reclaim, place]
    env = {**os.environ, "OVERSPILL_RUN": ""}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


class Late:
    '''Looks when it is unpickled, before the handle behind it is.'''

    def __reduce__(self):
        return look, ()


def work(reclaimed, handle):
    if method == "fork":
        reclaimed = look()
    assert int(handle.open().sum()) == 499500
    Path(answer).write_text(reclaimed)


if __name__ == "__main__":
    import torch
    import overspill as ov

    # Backwards: multiprocessing, imported before, joins its children after this has run.
    atexit.register(lambda: Path(fifo).write_text("leaving"))
    ov.prepare_spill_dir()
    tensor = ov.spill_tensor_to_disk(torch.arange(1000), required=True)
    context = multiprocessing.get_context(method)
    context.Process(target=work, args=(Late(), ov.handle(tensor))).start()
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_parent_that_has_nothing_left_to_do_holds_on_until_its_child_has_joined(
    method: str, tmp_path: Path
) -> None:
    place, fifo, answer = tmp_path / "spill", tmp_path / "fifo", tmp_path / "answer"
    os.mkfifo(fifo)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = child_environment(OVERSPILL_DIR=str(place), OVERSPILL_MIN_BYTES="1", OVERSPILL_RUN="")
    argv = [sys.executable, str(script), str(place), str(fifo), str(answer), method, RECLAIM]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert answer.read_text() == "0"  # the stranger found no dead run
    assert len(spill_files(place)) == 1
    assert len(reclaim_dead_runs(place)) == 1  # both are gone now
