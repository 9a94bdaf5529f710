"""``overspill clean``: what is dead goes, what lives stays, and ``--dry-run`` says so before."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from overspill.cli.app import app
from overspill.errors import SpillDirError
from overspill.settings import child_environment
from overspill.storage import leases
from overspill.storage.leases import found_run, reclaim_dead_runs, sweep_dead_runs
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


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may look into, as pytest's own are not."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place)


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


def test_a_directory_of_a_spill_files_name_is_kept_by_both(tmp_path: Path) -> None:
    (dead_run(tmp_path) / "spill_00000000000000aa.bin").mkdir()
    for how in (["--dry-run"], []):
        told, reason = clean(tmp_path, *how, code=1)
        assert "0 dead runs " in told and "spill_00000000000000aa.bin" in reason
        assert ": 1 file, 1.0 MiB" in told  # what a run made goes


def test_what_is_kept_is_said_once(tmp_path: Path) -> None:
    (dead_run(tmp_path) / "thesis.tex").touch()
    argv = [sys.executable, "-c", "from overspill.cli import main; main()", "clean", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("kept /") == 1


@pytest.mark.parametrize("how", [[], ["--dry-run"]])
@pytest.mark.parametrize("call", ["open", "listdir"])
def test_a_want_of_descriptors_is_said(
    call: str, how: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = dead_run(tmp_path)
    real = getattr(os, call)

    def fails(place: Any, *rest: Any, **options: Any) -> Any:
        if place == directory or (call == "listdir" and isinstance(place, int)):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(place, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(leases.os, call, fails)
        _, reason = clean(tmp_path, *how, code=1)
    assert "Too many open files" in reason and len(list(tmp_path.glob("*/spill_*.bin"))) == 1


def test_a_directory_that_cannot_be_listed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dead_run(tmp_path)

    def fails(place: Any) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(leases.os, "listdir", fails)
        with pytest.raises(SpillDirError, match="ulimit"):
            sweep_dead_runs(tmp_path)
        assert reclaim_dead_runs(tmp_path) == []  # which must not keep a run from beginning
    assert "Too many open files" in caplog.text


@pytest.mark.requires("unprivileged_user")
def test_what_is_another_users_is_said_to_be(open_place: Path) -> None:
    place = open_place
    held, empty = dead_run(place), place / ("run-" + "e" * 32)
    empty.mkdir()
    for path in (held, empty):
        path.chmod(0o755)
    (held / "lease").chmod(0o644)
    (held / "spill_0123456789abcdef.bin").chmod(0o644)
    # In a process of its own, which can be that user for good.
    script = (
        "import os, sys; from overspill.cli.app import app; from typer.testing import CliRunner\n"
        "CliRunner().invoke(app, ['clean', '--help']); CliRunner().invoke(app, ['status', '/'])\n"
        "CliRunner().invoke(app, ['clean', '/']); os.setuid(65534); codes = []\n"
        "for verb in (['status'], ['clean', '--dry-run'], ['clean']):\n"
        "    done = CliRunner().invoke(app, [*verb, sys.argv[1]])\n"
        "    print(done.output); codes.append(done.exit_code)\n"
        "print('ends with', *codes)\n"
    )
    argv = [sys.executable, "-c", script, str(place)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    told = " ".join(done.stdout.split())
    assert "2 dead runs (1.0 MiB), not this user's" in told, done.stderr
    assert "to clean" not in told
    assert told.count("user 65534 may not remove it; it belongs to user 0") == 4
    assert told.count("clean as their owner") == 2 and told.endswith("ends with 0 1 1")
    assert held.exists() and empty.exists()


@pytest.mark.parametrize("verb", [["status"], ["clean"], ["clean", "--dry-run"]])
@pytest.mark.parametrize("name", ["manifest.json", "partition.json", ".overspill-build"])
def test_a_dataset_is_no_spill_directory(name: str, verb: list[str], tmp_path: Path) -> None:
    (tmp_path / name).touch()
    done = CliRunner().invoke(app, [*verb, str(tmp_path)])
    assert done.exit_code == 1 and "no spill directory" in done.stderr
    dead_run(tmp_path)
    assert CliRunner().invoke(app, [*verb, str(tmp_path)]).exit_code == 0
