"""Two minutes of the soak on a stage of its own; and a round of actions that are broken on purpose.

A process of its own, which moves to a mount namespace of its own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from capabilities import requires
from forked import script_environment

pytestmark = requires("memory_cgroup", "loop_device", "private_mount")

# What is broken stands in the place of an action of that name; the killer holds still.
BROKEN = """
import signal, sys
import soak.rounds, soak.trouble
from soak.repertoire import ACTIONS
from soak.stage import Stage

PEACEFUL = ("write inputs", "list batches", "build", "partition", "clean")

def leave_stray(stage, chance):
    (stage.data / "stray").touch()
    return {}

def change_array(stage, chance):
    array = max((stage.data / "home-dense").rglob("*.*"), key=lambda one: one.stat().st_size)
    with array.open("r+b") as file:
        file.seek(-64, 2)
        file.write(bytes(range(64)))
    return {}

def fail_without_a_name(stage, chance):
    raise ValueError("nameless")

def hang(stage, chance):
    (stage.tmp / "hanging").touch()
    signal.pause()

broken = {
    "spill": leave_stray, "grow": change_array, "collate": fail_without_a_name, "preshare": hang
}
if __name__ == "__main__":
    soak.rounds.PEACEFUL = PEACEFUL
    soak.rounds._MOST_ACTS = len(broken)  # of which this seed draws each once
    soak.trouble._KILL_EVERY_S = soak.trouble._FILL_EVERY_S = 1e9
    with Stage.make() as stage:
        # On a busy machine others may take as long, and it may not be there yet.
        soak.rounds._hangs = lambda actor, _: (
            actor.action == "preshare" and (stage.tmp / "hanging").exists()
        )
        actions = {name: ACTIONS[name] for name in PEACEFUL} | broken
        played = soak.rounds.Soak(stage, 6, ["dense"], actions=actions)
        counts = played.play(soak.rounds.Extent(0, round_s=60, hang_s=1))
    print(counts.summary())
    sys.exit(1 if counts.violations else 0)
"""


def run(argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    # Sockets lie below it, whose paths may have 107 characters: pytest's own place is too deep.
    with tempfile.TemporaryDirectory(prefix="ov-", dir="/tmp") as place:
        done = _run([sys.executable, *argv], place, timeout_s)
        assert not list(Path(place).glob("overspill*")), f"the stage is still there: {done.stderr}"
    return done


def _run(argv: list[str], place: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    child = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=script_environment({"TMPDIR": place}),
    )
    with child:
        try:
            said = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.terminate()  # it takes its stage down
            raise AssertionError(f"no end: {child.communicate(timeout=60)}") from None
    return subprocess.CompletedProcess(argv, child.returncode, *said)


@pytest.mark.slow
def test_two_minutes_without_a_violation() -> None:
    # A seed of its own is drawn by `make soak`.
    done = run(["-m", "soak", "--minutes", "2", "--seed", "1"], 560)
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}"
    assert re.search(r"^violations: 0$", done.stdout, re.MULTILINE)
    counted = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    for action in ("build", "load"):
        assert re.search(r"\bdone \d", counted[action]), done.stdout
    assert "an action" in counted["kills"] and "as wanted" in counted["disk filled"]


@pytest.mark.slow
def test_what_is_broken_is_found(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    done = run([str(path)], 300)
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    for told in (
        r"/data/stray belongs to nothing",
        r"home-dense does not verify: FormatError: .*sha256 differs",
        r"collate .* raised ValueError, which nothing explains",
        r"preshare .* took more than 1 s\n(.*\n)*.* in hang\n",
    ):
        assert re.search(told, done.stdout), f"{told}\n{done.stdout}\n{done.stderr}"
