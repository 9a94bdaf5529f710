"""A look into a spill directory: what is alive, who holds and maps what; and nobody notices."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capabilities import requires
from overspill.errors import InputError, OverspillError, SpillDirError
from overspill.linux.locks import lock_exclusive
from overspill.linux.mapping import Mapping, map_file
from overspill.settings import child_environment
from overspill.storage import leases, survey
from overspill.storage.leases import found_run, reclaim_dead_runs, sweep_dead_runs, take_share
from overspill.storage.run_reports import RunReport
from overspill.storage.spill_records import TensorRecord, record_tensor
from overspill.storage.survey import survey_spill_dir
from overspill.storage.workspace import Run, join_run, leave_runs

NBYTES = 4 * 4096
ELSEWHERE = "far/11111111-1111-1111-1111-111111111111"
# A member that maps the run's file, and has a child that does too.
MEMBER = """
import os, sys
from pathlib import Path
from overspill.linux.mapping import map_file
from overspill.storage.workspace import join_run
run = join_run(Path(sys.argv[1]))
with run.create_spill_file(8192) as file:
    file.keep()
held = map_file(file.path, nbytes=8192, shared=True)
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    os.close(writes)
    os.read(reads, 1)
    os._exit(0)
print(run.directory.name, os.getpid(), child, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def runs_left() -> Iterator[None]:
    leave_runs()
    yield
    leave_runs()


def kept_file(run: Run, nbytes: int = NBYTES, record: TensorRecord | None = None) -> Path:
    with run.create_spill_file(nbytes) as file:
        if record is not None:
            record_tensor(file.fd, record)
        file.keep()
    return Path(file.path)


def mapped(path: Path) -> Mapping:
    return map_file(path, nbytes=path.stat().st_size, shared=True)


def dead_run(place: Path, **changes: object) -> Path:
    """A run that nobody holds, of one file; with changes to what its lease tells."""
    place.mkdir(exist_ok=True)
    directory, lease = found_run(place)
    (directory / "spill_0123456789abcdef.bin").write_bytes(bytes(10))
    rewrite(lease, **changes)
    os.close(lease)
    return directory


def rewrite(lease: int, **changes: object) -> None:
    told = {**json.loads(os.pread(lease, 4096, 0)), **changes}
    os.pwrite(lease, json.dumps(told).encode().ljust(4096), 0)


def never(*_arguments: object, **_options: object) -> bool:
    raise AssertionError("a look locks")


def only(place: Path) -> RunReport:
    (run,) = survey_spill_dir(place).runs
    return run


def test_an_empty_directory(tmp_path: Path) -> None:
    report = survey_spill_dir(tmp_path)
    assert (report.directory, report.runs, report.unnamed_files) == (tmp_path, (), 0)
    assert 0 < report.free_bytes < report.total_bytes and report.file_system != "unknown"


def test_ones_own_run_is_told_with_its_files(tmp_path: Path) -> None:
    run = join_run(tmp_path / "spill")
    small = kept_file(run, 24, TensorRecord("int64", (3,)))
    large = kept_file(run)
    held = mapped(large)
    np.asarray(held)[0] = 7
    (run.directory / "notes.txt").touch()
    (told,) = survey_spill_dir(tmp_path / "spill").runs
    assert (told.directory, told.state, told.reason) == (run.directory, "alive", "")
    assert told.is_of_this_machine and told.age_s is not None and told.age_s >= 0
    assert told.began is not None and told.began.pid == os.getpid()
    ((pid, command, shown),) = [(p.pid, p.command, p.shows_mappings) for p in told.processes]
    assert (pid, shown) == (os.getpid(), True) and Path(sys.executable).name in (command or "")
    first, second = told.files  # the largest first
    assert (first.name, first.nbytes, first.tensor) == (large.name, NBYTES, None)
    assert (second.name, second.tensor) == (small.name, TensorRecord("int64", (3,)))
    assert (first.mapped_by, second.mapped_by) == ((os.getpid(),), ())
    assert first.resident_bytes is not None and 4096 <= first.resident_bytes <= NBYTES
    assert (told.nbytes, told.resident_bytes >= 4096) == (NBYTES + 24, True)


def test_a_look_faults_no_page_and_leaves_nothing(tmp_path: Path) -> None:
    run = join_run(tmp_path)
    path = kept_file(run, 1 << 20)
    before = path.stat()
    for _ in range(2):
        (file,) = only(tmp_path).files
        assert file.resident_bytes == 0
    assert path.stat() == before
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_every_process_that_holds_a_run_is_found_and_a_killed_one_is_not(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", MEMBER, str(tmp_path)]
    env = child_environment(OVERSPILL_RUN="")
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=env) as member:
        assert member.stdout is not None
        name, *numbers = member.stdout.readline().split()
        pids = sorted(int(number) for number in numbers)
        left = dead_run(tmp_path)
        alive, dead = survey_spill_dir(tmp_path).runs
        assert (alive.directory.name, alive.state) == (name, "alive")
        assert sorted(process.pid for process in alive.processes) == pids
        (file,) = alive.files
        assert sorted(file.mapped_by) == pids
        assert (dead.directory, dead.state, dead.processes) == (left, "dead", ())
        assert dead.files[0].mapped_by == ()
        member.kill()  # its child ends with it: its end of the pipe goes
        member.wait()
        with (alive.directory / "lease").open("rb+") as lease:
            assert lock_exclusive(lease.fileno(), blocking=True)  # which waits for the child's end
        assert {run.state for run in survey_spill_dir(tmp_path).runs} == {"dead"}
    assert len(reclaim_dead_runs(tmp_path)) == 2


def test_what_has_lost_its_name_still_counts_while_it_is_mapped(tmp_path: Path) -> None:
    run = join_run(tmp_path)
    discarded = kept_file(run)
    fd = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(fd, 4096)
    held = [mapped(discarded), map_file(f"/proc/self/fd/{fd}", nbytes=4096, shared=True)]
    os.close(fd)
    discarded.unlink()
    report = survey_spill_dir(tmp_path)
    assert (report.unnamed_files, report.unnamed_bytes) == (2, NBYTES + 4096)
    assert report.runs[0].files == ()
    del held
    assert survey_spill_dir(tmp_path).unnamed_files == 0


class TestLeases:
    def test_a_look_takes_no_lock(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run, dead = join_run(tmp_path), dead_run(tmp_path)

        monkeypatch.setattr(leases, "lock_exclusive", never)
        states = {told.directory: told.state for told in survey_spill_dir(tmp_path).runs}
        assert states == {run.directory: "alive", dead: "dead"}
        assert [told.directory for told in sweep_dead_runs(tmp_path, dry_run=True)] == [dead]

    def test_an_unsigned_one_is_not_locked_either(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A founder between the making of its lease and its first share: a lock would stop it.
        states, mark = [], leases.mark_span

        def look(fd: int, *span: int) -> bool:
            states.append(only(tmp_path).state)
            assert [one.directory for one in sweep_dead_runs(tmp_path, dry_run=True)]
            marked = mark(fd, *span)
            states.append(only(tmp_path).state)
            assert sweep_dead_runs(tmp_path, dry_run=True) == []
            return marked

        monkeypatch.setattr(leases, "lock_exclusive", never)
        monkeypatch.setattr(leases, "mark_span", look)
        directory, lease = found_run(tmp_path)
        assert states == ["dead", "alive"] and only(tmp_path).directory == directory
        os.close(lease)

    def test_a_founder_that_starts_over_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        share, tries = leases.lock_shared, []

        def at_first_locked(fd: int, **how: bool) -> bool:
            tries.append(fd)
            return len(tries) > 2 and share(fd, **how)

        monkeypatch.setattr(leases, "lock_shared", at_first_locked)
        directory, lease = found_run(tmp_path)
        assert len(tries) == 3 and list(tmp_path.iterdir()) == [directory]
        os.close(lease)

    def test_a_reclaimer_goes_on_where_the_founder_was_faster(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone, left, removed = dead_run(tmp_path), dead_run(tmp_path), []

        rename = Path.rename

        def late(place: Path, target: Path) -> Path:
            removed.append(place)
            if place == gone:
                shutil.rmtree(place)
            else:
                (place / "lease").unlink()
            return rename(place, target)

        monkeypatch.setattr(Path, "rename", late)
        (done,) = reclaim_dead_runs(tmp_path)
        assert sorted(removed) == sorted([gone, left])
        assert (done.directory, done.kept) == (left, None)
        assert list(tmp_path.iterdir()) == []

    def test_one_without_marks_is_locked_for_a_moment(self, tmp_path: Path) -> None:
        directory = dead_run(tmp_path, marked=False)
        assert only(tmp_path).state == "dead"
        share = take_share(directory)  # nobody is in the way
        leases.unlock(share)
        assert only(tmp_path).state == "alive"  # by its mark alone
        os.close(share)

    def test_one_whose_holders_have_no_marks_is_alive_by_its_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(leases, "mark_span", lambda *a: False)
        run = join_run(tmp_path)
        assert only(tmp_path).state == "alive"
        assert run.held

    def test_where_the_file_system_does_not_tell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dead_run(tmp_path)
        monkeypatch.setattr(survey, "is_held", lambda lease, *, marked: None)
        assert (only(tmp_path).state, only(tmp_path).processes) == ("unknown", ())

    def test_a_run_of_another_machine_is_told_by_its_lease_alone(self, tmp_path: Path) -> None:
        directory = dead_run(tmp_path, host=ELSEWHERE)
        told = only(tmp_path)
        assert (told.state, told.is_of_this_machine) == ("dead", False)
        assert "nobody holds its lease" in told.reason and "another machine" in told.reason
        share = take_share(directory)
        told = only(tmp_path)
        assert told.state == "alive" and "its lease is held" in told.reason
        os.close(share)

    def test_nothing_is_judged_or_removed_where_its_locks_cannot_be_seen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        directory = dead_run(tmp_path, host=ELSEWHERE)
        own = dead_run(tmp_path)
        monkeypatch.setattr(leases, "has_local_locks", lambda path: True)
        states = {told.directory: told.state for told in survey_spill_dir(tmp_path).runs}
        assert states == {directory: "unknown", own: "dead"}
        listed = sweep_dead_runs(tmp_path, dry_run=True)
        assert {told.directory: told.kept is None for told in listed} == {
            directory: False,
            own: True,
        }
        assert "'far'" in str([told.kept for told in listed])
        assert [told.directory for told in reclaim_dead_runs(tmp_path)] == [own]
        assert len(list(directory.iterdir())) == 2

    def test_holders_that_cannot_be_seen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = join_run(tmp_path)
        proc = tmp_path / "proc"
        proc.mkdir()
        (told,) = survey_spill_dir(tmp_path, proc=proc).runs
        assert (told.state, told.processes) == ("alive", ())
        assert "cannot be seen from here" in told.reason
        # Where descriptors are not shown, who took the lock is.
        lease = (run.directory / "lease").stat()
        device = f"{os.major(lease.st_dev):02x}:{os.minor(lease.st_dev):02x}:{lease.st_ino}"
        (proc / "locks").write_text(f"1: FLOCK  ADVISORY  READ 4242 {device} 0 EOF\n")
        (proc / "4242").mkdir()
        (proc / "4242" / "maps").touch()
        listdir = os.listdir

        def closed(path: object = ".") -> list[str]:
            if str(path).endswith("/4242/fd"):
                raise PermissionError(errno.EACCES, "no")
            return listdir(path)  # type: ignore[call-overload, no-any-return]

        monkeypatch.setattr(os, "listdir", closed)
        (told,) = survey_spill_dir(tmp_path, proc=proc).runs
        assert [process.pid for process in told.processes] == [4242]

    @pytest.mark.parametrize(
        ("lease", "state", "told"),
        [
            (None, "dead", "made no lease"),
            (b"", "dead", "did not sign"),
            (b'{"format": "rental"}', "unknown", "not of a run"),
            (b"[" * 4096, "unknown", "not of a run"),
        ],
    )
    def test_one_that_tells_nothing(
        self, lease: bytes | None, state: str, told: str, tmp_path: Path
    ) -> None:
        directory = tmp_path / ("run-" + "d" * 32)
        directory.mkdir()
        if lease is not None:
            (directory / "lease").write_bytes(lease)
        run = only(tmp_path)
        assert (run.state, run.age_s, run.is_of_this_machine) == (state, None, None)
        assert told in run.reason
        # What clean would do is what it does.
        listed = [one.directory for one in sweep_dead_runs(tmp_path, dry_run=True)]
        assert directory.exists()
        assert listed == [one.directory for one in reclaim_dead_runs(tmp_path)]
        assert directory.exists() is (state == "unknown")

    def test_what_a_reclaimer_left_half_way(self, tmp_path: Path) -> None:
        directory = dead_run(tmp_path)
        directory.rename(directory.with_name("dead-" + "0" * 32))
        assert (only(tmp_path).state, "half-way" in only(tmp_path).reason) == ("dead", True)


class TestDryRuns:
    def test_it_lists_what_is_removed_and_removes_nothing(self, tmp_path: Path) -> None:
        directory, run = dead_run(tmp_path), join_run(tmp_path / "other")
        (directory / "ledger").touch()
        listed = sweep_dead_runs(tmp_path, dry_run=True)
        assert len(list(directory.iterdir())) == 3
        assert listed == reclaim_dead_runs(tmp_path)
        assert [(one.directory, one.files, one.nbytes) for one in listed] == [(directory, 1, 10)]
        assert sweep_dead_runs(tmp_path / "other") == [] and run.held

    def test_a_directory_that_will_be_kept(self, tmp_path: Path) -> None:
        directory = dead_run(tmp_path)
        (directory / "thesis.tex").touch()
        (listed,) = sweep_dead_runs(tmp_path, dry_run=True)
        assert listed.files == 1 and "thesis.tex" in (listed.kept or "")
        (done,) = sweep_dead_runs(tmp_path)
        assert (done.files, done.kept) == (1, listed.kept)
        assert done.directory.name.startswith("dead-") and done.directory.exists()
        assert reclaim_dead_runs(tmp_path) == []  # nothing of it is left to remove


class TestBadInput:
    def test_what_cannot_be_looked_into(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for place, number in (("none", errno.ENOENT), ("file", errno.ENOTDIR)):
            with pytest.raises(SpillDirError) as caught:
                survey_spill_dir(tmp_path / place)
            assert caught.value.errno == number and caught.value.remedy
        with pytest.raises(InputError, match="NUL"):
            survey_spill_dir("a\0b")

    @pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
    @pytest.mark.parametrize("call", ["open", "listdir", "fstat"])
    def test_one_run_that_fails_ends_no_look(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
    ) -> None:
        run, broken = join_run(tmp_path), dead_run(tmp_path)
        meant = broken if call == "open" else next(broken.glob("spill_*"))
        node = (broken if call == "listdir" else meant).stat().st_ino
        real, fstat = getattr(os, call), os.fstat

        def fails(place: Any, *rest: Any, **how: Any) -> Any:
            if place == meant or (isinstance(place, int) and fstat(place).st_ino == node):
                raise OSError(number, os.strerror(number))
            return real(place, *rest, **how)

        with monkeypatch.context() as patched:
            patched.setattr(survey.os, call, fails)
            alive, unknown = survey_spill_dir(tmp_path).runs
        assert (alive.directory, alive.state) == (run.directory, "alive")
        assert (unknown.directory, unknown.state) == (broken, "unknown")
        assert os.strerror(number) in unknown.reason

    def test_what_cannot_be_listed_is_told_by_a_dry_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dead_run(tmp_path)
        real = os.listdir

        def fails(place: Any) -> list[str]:
            if isinstance(place, int):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return list(real(place))

        with monkeypatch.context() as patched:
            patched.setattr(leases.os, "listdir", fails)
            (told,) = sweep_dead_runs(tmp_path, dry_run=True)
        assert "cannot be looked into" in (told.kept or "")

    def test_other_things_of_a_runs_name_are_left_out(self, tmp_path: Path) -> None:
        (tmp_path / ("run-" + "a" * 32)).touch()
        (tmp_path / ("run-" + "b" * 32)).symlink_to(tmp_path)
        (tmp_path / "run-notes").mkdir()
        run = join_run(tmp_path)
        os.mkfifo(run.directory / "spill_0123456789abcdef.bin")
        (run.directory / "spill_0123456789abcdee.bin").symlink_to("/etc/passwd")
        told = only(tmp_path)
        assert (told.directory, told.files) == (run.directory, ())
        for name in ("spill_0123456789abcdef.bin", "spill_0123456789abcdee.bin"):
            (run.directory / name).unlink()

    @requires("unprivileged_user")
    def test_a_run_of_another_user(self, tmp_path: Path, run_as_nobody: Callable[..., str]) -> None:
        join_run(tmp_path)
        told = run_as_nobody(tmp_path).split("|")
        assert told[0] == "unknown" and "belongs to user 0" in told[1]
        assert told[2].strip() == "SpillDirError"


@pytest.fixture
def run_as_nobody() -> Callable[[Path], str]:
    """What another user sees of a directory, and of one that is closed to them."""
    script = (
        "import os, sys\n"
        "from overspill.errors import OverspillError\n"
        "from overspill.storage.survey import survey_spill_dir\n"
        "os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
        "(run,) = survey_spill_dir(sys.argv[1]).runs\n"
        "try: survey_spill_dir(run.directory)\n"
        "except OverspillError as error: kind = type(error).__name__\n"
        "print(run.state, run.reason, kind, sep='|')\n"
    )

    def look(place: Path) -> str:
        for parent in (place, *place.parents):  # more of them where several run side by side
            if not parent.stat().st_mode & 0o001:
                parent.chmod(0o755)
        argv = [sys.executable, "-c", script, str(place)]
        done = subprocess.run(argv, capture_output=True, text=True, env=child_environment())
        assert done.returncode == 0, done.stderr
        return done.stdout

    return look


def test_a_disk_that_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "statvfs", refuses)
    with pytest.raises(OverspillError, match="cannot be asked"):
        survey_spill_dir(tmp_path)
