"""``overspill clean``: what is dead goes, what lives stays, and ``--dry-run`` says so before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from overspill.cli.app import app
from overspill.settings import child_environment
from overspill.storage import leases
from overspill.storage.leases import found_run
from overspill.storage.workspace import join_run, leave_runs

MIB = 1 << 20
# Begins a run with a file of 1 MiB, says where, and lives until its standard input ends.
OWNER = (
    "import sys\n"
    "from pathlib import Path\n"
    "from overspill.storage.workspace import join_run\n"
    "with join_run(Path(sys.argv[1])).create_spill_file(1 << 20) as file:\n"
    "    file.keep()\n"
    "print(file.path, flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def runs_left() -> Iterator[None]:
    leave_runs()
    yield
    leave_runs()


def clean(*arguments: object, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["clean", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def dead_run(place: Path) -> Path:
    directory, lease = found_run(place)
    (directory / "spill_0123456789abcdef.bin").write_bytes(bytes(MIB))
    os.close(lease)
    return directory


def test_a_killed_run_goes_and_a_living_one_stays(tmp_path: Path) -> None:
    with join_run(tmp_path).create_spill_file(10) as file:
        file.keep()
    living = Path(file.path)
    argv = [sys.executable, "-c", OWNER, str(tmp_path)]
    env = child_environment(OVERSPILL_RUN="")
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env) as owner:
        assert owner.stdout is not None
        held = Path(owner.stdout.readline().strip())
        told, _ = clean(tmp_path)
        assert told == f"0 dead runs removed from {tmp_path}, 0 B\n" and held.exists()
        owner.kill()
    told, _ = clean(tmp_path, "--dry-run")
    assert f"{held.parent}: 1 file, 1.0 MiB" in told
    assert f"1 dead run to remove from {tmp_path}, 1.0 MiB" in told
    assert held.exists() and living.exists()
    told, _ = clean(tmp_path)
    assert f"{held.parent}: 1 file, 1.0 MiB" in told and "1 dead run removed" in told
    assert not held.parent.exists() and living.exists()


@pytest.mark.parametrize("how", [[], ["--dry-run"]])
def test_what_must_be_kept_is_a_finding(how: list[str], tmp_path: Path) -> None:
    (dead_run(tmp_path) / "thesis.tex").touch()
    gone = dead_run(tmp_path)
    told, reason = clean(tmp_path, *how, code=1)
    assert "thesis.tex" in reason and "what to do" in reason
    assert "1 dead run " in told and "2.0 MiB" in told
    assert gone.exists() is bool(how)
    assert len(list(tmp_path.glob("*/thesis.tex"))) == 1


def test_what_cannot_be_removed_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = dead_run(tmp_path)

    def refuses(name: str, **_options: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(leases.os, "unlink", refuses)
    told, reason = clean(tmp_path, code=1)
    assert "Permission denied" in reason and "0 dead runs removed" in told
    monkeypatch.undo()
    assert "1 dead run removed" in clean(tmp_path)[0]
    assert not directory.exists()
