"""A spill directory that users share, sticky and writable by all, and what another one may plant.

Run as root: it plants in the name of one user (the planter), and a process of another (the victim)
works in the same directory.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import overspill as ov
from capabilities import requires
from overspill.errors import StaleFileError
from overspill.settings import child_environment
from overspill.storage.leases import found_run, reclaim_dead_runs
from overspill.storage.survey import survey_spill_dir
from overspill.storage.workspace import adopt_run, join_run, leave_runs

PLANTER, VICTIM = 65533, 65534
SPILLED = "spill_0123456789abcdef.bin"
LEASE = b'{"format": "overspill-run", "version": 1}'.ljust(4096)

# Becomes another user, then evaluates each line of its standard input and tells what came of it.
AS_USER = """
import os, sys
from pathlib import Path
from overspill.storage.leases import reclaim_dead_runs, take_share
from overspill.storage.survey import survey_spill_dir
from overspill.storage.workspace import adopt_run, join_run
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
place = Path(sys.argv[2])
for line in sys.stdin:
    try:
        told = eval(line)
    except OSError as error:
        told = type(error).__name__
    print(told, flush=True)
"""


@pytest.fixture(autouse=True)
def runs_left() -> Iterator[None]:
    leave_runs()
    yield
    leave_runs()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The directory that users share."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    for parent in (tmp_path, *tmp_path.parents):
        if mode(parent) & 0o5 != 0o5:  # nobody else may look into it otherwise
            parent.chmod(0o755)
    return place


@pytest.fixture
def plant(shared: Path) -> Callable[..., Path]:
    """``plant(run, lease=LEASE, **files)``: the planter's run directory, with these files."""

    def planted(name: str, lease: bytes | None = LEASE) -> Path:
        directory = shared / name
        directory.mkdir()
        if lease is not None:
            (directory / "lease").write_bytes(lease)
            (directory / "lease").chmod(0o666)
            os.chown(directory / "lease", PLANTER, PLANTER)
        directory.chmod(0o777)
        os.chown(directory, PLANTER, PLANTER)
        return directory

    return planted


def run_name(digit: str) -> str:
    return "run-" + digit * 32


def ask_as(user: int, place: Path, *questions: str, **env: str) -> list[str]:
    argv = [sys.executable, "-c", AS_USER, str(user), str(place)]
    known = {**child_environment(), "OVERSPILL_RUN": "", **env}
    done = subprocess.run(
        argv, input="\n".join(questions), capture_output=True, text=True, env=known, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_whatever_a_run_makes_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run = join_run(tmp_path)
        with ov.settings(disk_limit_bytes=1 << 20), run.create_spill_file(10) as file:
            modes = {path.name: mode(path) for path in run.directory.iterdir()}
    finally:
        os.umask(before)
    assert mode(run.directory) == 0o700
    assert modes == {"lease": 0o600, "ledger": 0o600, Path(file.path).name: 0o600}


@requires("unprivileged_user")
def test_another_user_can_neither_look_into_a_run_nor_take_it_away(shared: Path) -> None:
    run = join_run(shared)
    with run.create_spill_file(10) as file:
        file.keep()
    dead, lease = found_run(shared)
    os.close(lease)
    named = repr(str(run.directory))
    told = ask_as(
        PLANTER,
        shared,
        f"os.listdir({named})",
        f"os.open({file.path!r}, os.O_RDONLY)",
        f"os.rename({named}, {str(shared / 'mine')!r})",
        f"os.symlink('/etc/passwd', {file.path!r} + 'x')",
        f"take_share(Path({named}))",
        "reclaim_dead_runs(place)",
        "[run.state for run in survey_spill_dir(place).runs]",
    )
    assert told[:5] == ["PermissionError"] * 4 + ["StaleFileError"]
    assert told[5:] == ["[]", "['unknown', 'unknown']"]
    assert Path(file.path).exists() and dead.exists()


@requires("unprivileged_user")
def test_a_run_that_another_user_made_under_a_known_name_is_not_joined(
    shared: Path, plant: Callable[..., Path]
) -> None:
    """The name is seen by all, and an environment or a handle may outlive the run."""
    planted = plant(run_name("a"))
    joins = "join_run(place).directory.stat().st_uid"
    (refused, own) = ask_as(
        VICTIM, shared, f"adopt_run(Path({str(planted)!r}))", joins, OVERSPILL_RUN=str(planted)
    )
    assert (refused, own) == ("StaleFileError", str(VICTIM))
    with pytest.raises(StaleFileError, match=f"user {PLANTER}'s") as caught:
        adopt_run(planted)
    assert caught.value.path == str(planted) and caught.value.remedy
    assert [path.name for path in planted.iterdir()] == ["lease"]  # nobody wrote there


@requires("root")
def test_what_the_owner_of_the_directory_made_is_joined(
    shared: Path, plant: Callable[..., Path]
) -> None:
    os.chown(shared, PLANTER, PLANTER)
    assert adopt_run(plant(run_name("a"))).held


def test_a_link_in_place_of_a_run_is_not_followed(tmp_path: Path) -> None:
    elsewhere, lease = found_run(tmp_path)
    try:
        spill_dir = tmp_path / "spill"
        spill_dir.mkdir()
        link = spill_dir / run_name("b")
        link.symlink_to(elsewhere)
        with pytest.raises(StaleFileError):
            adopt_run(link)
        planted = spill_dir / run_name("c")
        planted.mkdir()
        (planted / "lease").symlink_to(elsewhere / "lease")
        with pytest.raises(StaleFileError):
            adopt_run(planted)
        assert reclaim_dead_runs(spill_dir) == []
        states = {run.state for run in survey_spill_dir(spill_dir).runs}
        assert states <= {"unknown"} and link.is_symlink()
    finally:
        os.close(lease)


@pytest.mark.timeout(120)
def test_a_pipe_in_place_of_a_lease_keeps_nobody_waiting(tmp_path: Path) -> None:
    directory = tmp_path / run_name("d")
    directory.mkdir()
    os.mkfifo(directory / "lease")
    with pytest.raises(StaleFileError, match="cannot be joined"):
        adopt_run(directory)
    assert reclaim_dead_runs(tmp_path) == []
    assert [run.state for run in survey_spill_dir(tmp_path).runs] == ["unknown"]
    assert join_run(tmp_path).held and directory.exists()


@requires("unprivileged_user")
def test_links_in_a_planted_dead_run_lose_nobody_a_file(
    shared: Path, tmp_path: Path, plant: Callable[..., Path]
) -> None:
    """Root may remove what anybody left, and removes the links; other users may not."""
    kept = tmp_path / "thesis"
    kept.mkdir()
    (kept / SPILLED).write_bytes(b"mine")
    (kept / "lease").write_bytes(LEASE)
    for path in (kept, kept / SPILLED, kept / "lease"):
        os.chown(path, VICTIM, VICTIM)
    planted = plant(run_name("e"))
    (planted / SPILLED).symlink_to(kept / SPILLED)
    (planted / SPILLED.replace("0", "1")).symlink_to(kept)
    (planted / "ledger").symlink_to(kept / "lease")
    stolen = plant(run_name("f"), lease=None)
    (stolen / "lease").symlink_to(kept / "lease")
    moved = shared / run_name("0")
    moved.symlink_to(kept)

    found = ask_as(VICTIM, shared, "reclaim_dead_runs(place)", "join_run(place).held")
    assert found == ["[]", "True"] and len(list(planted.iterdir())) == 4
    removed = [run.directory for run in reclaim_dead_runs(shared)]
    assert planted in removed and not planted.exists()
    assert stolen not in removed and moved.is_symlink()
    held: dict[str, Any] = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert held == {SPILLED: b"mine", "lease": LEASE}
    assert json.loads(held["lease"])["version"] == 1
    shutil.rmtree(stolen)
