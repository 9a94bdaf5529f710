from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import overspill as ov
from capabilities import requires
from overspill.errors import DiskRefusedError, InputError, SpillDirError, StaleFileError
from overspill.linux.identity import host_identity
from overspill.linux.locks import lock_exclusive
from overspill.settings import child_environment, inherited_run
from overspill.storage import leases, spill_dirs, spill_files, workspace
from overspill.storage.leases import found_run, reclaim_dead_runs, take_share
from overspill.storage.workspace import adopt_run, adopt_run_of, join_run, leave_runs, run_room
from spilling import open_descriptors

# Joins or begins a run, says where, and lives until its standard input ends.
MEMBER = """
import sys
from pathlib import Path
from overspill.storage.workspace import join_run
run = join_run(Path(sys.argv[1]))
with run.create_spill_file(100) as file:
    file.keep()
print(run.directory, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def runs_left() -> Iterator[None]:
    leave_runs()
    yield
    leave_runs()


@pytest.fixture
def member() -> Iterator[Callable[..., tuple[subprocess.Popen[str], Path]]]:
    """``member(spill_dir)``: another process in a run there; by default in one of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(place: Path, **env: str) -> tuple[subprocess.Popen[str], Path]:
        argv = [sys.executable, "-c", MEMBER, str(place)]
        known = {**child_environment(), "OVERSPILL_RUN": "", **env}
        pipe = subprocess.PIPE
        child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=known)
        started.append(child)
        assert child.stdout is not None
        return child, Path(child.stdout.readline().strip())

    yield start
    for child in started:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            assert stream is not None
            stream.close()


def dead_run(place: Path, *names: str) -> Path:
    """A run whose processes are all gone, with these files."""
    place.mkdir(exist_ok=True, parents=True)
    directory, lease = found_run(place)
    for name in names:
        (directory / name).write_bytes(bytes(10))
    os.close(lease)
    return directory


def test_joining_is_idempotent_and_private(tmp_path: Path) -> None:
    run = join_run(tmp_path / "a" / "b")
    assert join_run(tmp_path / "a" / "b") is run
    assert stat.S_IMODE(run.directory.stat().st_mode) == 0o700
    lease = run.directory / "lease"
    assert stat.S_IMODE(lease.stat().st_mode) == 0o600
    told = json.loads(lease.read_text())
    assert told["run"] == run.identifier and told["pid"] == os.getpid()
    assert told["host"] == host_identity()
    assert inherited_run() == str(run.directory)


def test_runs_are_keyed_by_directory_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert join_run(tmp_path / "link") is join_run(tmp_path)
    other = join_run(tmp_path / "other")
    assert other is not join_run(tmp_path)
    assert (inherited_run() or "").split("\n") == [
        str(join_run(tmp_path).directory),
        str(other.directory),
    ]


def test_a_child_joins_through_the_environment_and_keeps_the_run_alive(
    tmp_path: Path, member: Callable[..., tuple[subprocess.Popen[str], Path]]
) -> None:
    run = join_run(tmp_path)
    _child, directory = member(tmp_path, OVERSPILL_RUN=inherited_run() or "")
    assert directory == run.directory
    leave_runs()
    assert reclaim_dead_runs(tmp_path) == []  # the child holds it
    assert len(list(directory.glob("spill_*.bin"))) == 1


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(
    tmp_path: Path, member: Callable[..., tuple[subprocess.Popen[str], Path]]
) -> None:
    alive, live_dir = member(tmp_path)
    killed, dead_dir = member(tmp_path)
    assert live_dir != dead_dir
    bystanders = [tmp_path / "run-notes.txt", tmp_path / "spill_0123456789abcdef.bin"]
    for path in bystanders:
        path.touch()
    (tmp_path / ("run-" + "0" * 31)).mkdir()
    killed.kill()
    killed.wait()
    run = join_run(tmp_path)
    assert not dead_dir.exists()
    assert len(list(live_dir.glob("spill_*.bin"))) == 1
    assert all(path.exists() for path in bystanders)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [live_dir.name, run.directory.name, "run-" + "0" * 31, *(p.name for p in bystanders)]
    )
    alive.stdin.close()  # type: ignore[union-attr]
    assert alive.wait() == 0
    assert len(reclaim_dead_runs(tmp_path)) == 1


def test_old_files_of_a_live_run_are_never_removed(tmp_path: Path) -> None:
    run = join_run(tmp_path)
    with run.create_spill_file(10) as file:
        file.keep()
    for path in (run.directory, run.directory / "lease", Path(file.path)):
        os.utime(path, (0, 0))
    assert reclaim_dead_runs(tmp_path) == []
    assert Path(file.path).exists()


class TestReclaiming:
    def test_counts_what_it_removed(self, tmp_path: Path) -> None:
        directory = dead_run(tmp_path, "spill_0123456789abcdef.bin", "ledger")
        (removed,) = reclaim_dead_runs(tmp_path)
        assert (removed.directory, removed.files, removed.nbytes) == (directory, 1, 10)
        assert list(tmp_path.iterdir()) == []

    def test_foreign_files_in_a_dead_run_stay(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        dead_run(tmp_path, "spill_0123456789abcdef.bin", "thesis.tex")
        reclaim_dead_runs(tmp_path)
        (left,) = tmp_path.iterdir()
        assert sorted(path.name for path in left.iterdir()) == ["lease", "thesis.tex"]
        assert "thesis.tex" in caplog.text

    def test_a_directory_of_that_name_without_our_lease_stays(self, tmp_path: Path) -> None:
        foreign = tmp_path / ("run-" + "a" * 32)
        foreign.mkdir()
        (foreign / "lease").write_text('{"format": "rental"}')
        (foreign / "spill_0123456789abcdef.bin").touch()
        other = tmp_path / ("run-" + "b" * 32)
        other.mkdir()
        (other / "spill_0123456789abcdef.bin").touch()
        link = tmp_path / ("run-" + "c" * 32)
        link.symlink_to(foreign)
        assert reclaim_dead_runs(tmp_path) == []
        assert len(list(foreign.iterdir())) == 2 and len(list(other.iterdir())) == 1
        assert link.is_symlink()

    @pytest.mark.parametrize("lease", [None, b"", bytes(4096)])
    def test_a_founder_that_died_early(self, lease: bytes | None, tmp_path: Path) -> None:
        directory = tmp_path / ("run-" + "d" * 32)
        directory.mkdir()
        if lease is not None:
            (directory / "lease").write_bytes(lease)
        assert len(reclaim_dead_runs(tmp_path)) == 1
        assert not directory.exists()

    def test_a_reclaimer_that_died_half_way_is_followed_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dead_run(tmp_path, "spill_0123456789abcdef.bin", "spill_fedcba9876543210.bin")
        unlink = os.unlink
        left = [1]

        def dies(name: str, **options: int) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop()
            unlink(name, **options)

        monkeypatch.setattr(leases.os, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            reclaim_dead_runs(tmp_path)
        monkeypatch.undo()
        (half,) = tmp_path.iterdir()
        assert half.name.startswith("dead-")
        with pytest.raises(StaleFileError):
            take_share(tmp_path / ("run-" + half.name.removeprefix("dead-")))
        (removed,) = reclaim_dead_runs(tmp_path)
        assert removed.files == 1
        assert list(tmp_path.iterdir()) == []

    def test_what_it_may_not_remove_is_reported_and_does_not_stop_a_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        dead_run(tmp_path, "spill_0123456789abcdef.bin")

        def refuses(name: str, **options: int) -> None:
            raise OSError(errno.EACCES, "no")

        monkeypatch.setattr(leases.os, "unlink", refuses)
        assert reclaim_dead_runs(tmp_path) == []
        assert "could not be removed" in caplog.text
        monkeypatch.undo()
        assert len(reclaim_dead_runs(tmp_path)) == 1

    def test_a_missing_directory_holds_nothing(self, tmp_path: Path) -> None:
        assert reclaim_dead_runs(tmp_path / "none") == []

    def test_a_run_that_somebody_reclaims_cannot_be_joined(self, tmp_path: Path) -> None:
        directory = dead_run(tmp_path)
        fd = os.open(directory / "lease", os.O_RDWR)
        try:
            assert leases.lock_exclusive(fd)
            with pytest.raises(StaleFileError, match="being removed"):
                adopt_run(directory)
        finally:
            os.close(fd)

    def test_a_founder_whose_directory_was_taken_starts_over(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock, tries = leases.lock_shared, []

        def taken_once(fd: int, *, blocking: bool) -> bool:
            tries.append(fd)
            if len(tries) == 1:  # a reclaimer removes the unlocked lease and its directory
                (directory,) = tmp_path.iterdir()
                (directory / "lease").unlink()
                directory.rmdir()
            return lock(fd, blocking=blocking)

        monkeypatch.setattr(leases, "lock_shared", taken_once)
        before = open_descriptors()
        directory, lease = found_run(tmp_path)
        os.close(lease)
        assert open_descriptors() == before
        assert len(tries) == 2 and (directory / "lease").exists()


class TestAdopting:
    def test_the_adopted_run_becomes_ones_own_where_there_is_none(self, tmp_path: Path) -> None:
        directory = dead_run(tmp_path)
        run = adopt_run(directory)
        assert join_run(tmp_path) is run is adopt_run(directory)
        assert inherited_run() == str(directory)

    def test_beside_ones_own_run_it_is_only_held(self, tmp_path: Path) -> None:
        own = join_run(tmp_path)
        other = dead_run(tmp_path)
        adopt_run_of(str(other / "spill_0123456789abcdef.bin"))
        assert join_run(tmp_path) is own
        assert reclaim_dead_runs(tmp_path) == []
        leave_runs()
        assert len(reclaim_dead_runs(tmp_path)) == 2

    def test_a_file_outside_of_any_run_has_none(self, tmp_path: Path) -> None:
        assert adopt_run_of(str(tmp_path / "spill_0123456789abcdef.bin")) is None

    def test_a_run_that_is_gone(self, tmp_path: Path) -> None:
        with pytest.raises(StaleFileError, match="is gone"):
            adopt_run(tmp_path / ("run-" + "e" * 32))

    def test_a_stale_environment_is_no_obstacle(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OVERSPILL_RUN", str(tmp_path / ("run-" + "f" * 32)))
        workspace.join_inherited_runs()
        assert join_run(tmp_path).directory.exists()

    def test_a_share_whose_descriptor_a_daemon_closed_is_taken_again(self, tmp_path: Path) -> None:
        run = join_run(tmp_path)
        os.close(run.lease_fd)
        with (tmp_path / "innocent").open("w") as innocent:
            again = join_run(tmp_path)
            assert again is not run and again.directory == run.directory
            innocent.write("still open")
        assert (tmp_path / "innocent").read_text() == "still open"

    def test_a_run_directory_that_was_deleted_is_replaced(self, tmp_path: Path) -> None:
        run = join_run(tmp_path)
        (run.directory / "lease").unlink()
        run.directory.rmdir()
        before = len(open_descriptors())
        assert join_run(tmp_path).directory != run.directory
        assert len(open_descriptors()) == before


class TestSpillDirectory:
    def test_missing_ones_are_made_with_parents(self, tmp_path: Path) -> None:
        assert join_run(tmp_path / "a" / "b" / "c").directory.is_dir()

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for place in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(SpillDirError, match="is a file") as caught:
                join_run(place)
            assert caught.value.path == str(place) and caught.value.remedy
            with pytest.raises(SpillDirError, match="is a file"):
                run_room(place)

    def test_what_has_no_name(self, tmp_path: Path) -> None:
        for ask in (join_run, run_room, adopt_run):
            with pytest.raises(InputError, match="NUL"):
                ask(tmp_path / "cut\0short" / ("run-" + "a" * 32))

    @pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
    @requires("private_mount")
    def test_memory_in_disguise(self, kind: str, memory_disk: Callable[..., Path]) -> None:
        place = memory_disk(kind)
        with pytest.raises(SpillDirError, match=f"{kind}, which is memory") as caught:
            join_run(place / "below")
        assert "OVERSPILL_DIR" in (caught.value.remedy or "")
        assert list(place.iterdir()) == []

    def test_copy_on_write_unless_allowed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spill_dirs, "is_copy_on_write", lambda path: True)
        with pytest.raises(SpillDirError, match="OVERSPILL_ALLOW_COW_DISK"):
            join_run(tmp_path)
        with ov.settings(allow_cow_disk=True):
            assert join_run(tmp_path).held

    @requires("private_mount")
    def test_a_read_only_mount(self, tmp_path: Path) -> None:
        place = tmp_path / "ro"
        place.mkdir()
        subprocess.run(["mount", "--bind", str(place), str(place)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
            with pytest.raises(SpillDirError, match="cannot be used") as caught:
                join_run(place)
            with pytest.raises(SpillDirError):
                join_run(place / "below")
            for asked in (place, place / "below" / "it"):
                with pytest.raises(SpillDirError, match="cannot be used"):
                    run_room(asked)
        finally:
            subprocess.run(["umount", str(place)], check=True)
        assert caught.value.errno in (errno.EROFS, errno.EACCES)

    @requires("unprivileged_user")
    def test_one_of_another_user(self, tmp_path: Path) -> None:
        script = (
            "import os, sys; from pathlib import Path\n"
            "from overspill.storage.workspace import join_run\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "print(os.listdir(sys.argv[1]))\n"  # it is reached: its own mode is what refuses
            "try: join_run(Path(sys.argv[1]))\n"
            "except OSError as error: print(type(error).__name__, error.errno, error)\n"
        )
        place = tmp_path / "closed"
        place.mkdir(mode=0o755)
        for parent in (tmp_path, *tmp_path.parents):
            if not parent.stat().st_mode & 0o001:
                parent.chmod(0o755)
        argv = [sys.executable, "-c", script, str(place)]
        done = subprocess.run(argv, capture_output=True, text=True, env=child_environment())
        reached, told = done.stdout.split("\n", 1)
        assert reached == "[]", done.stderr
        assert told.startswith(f"SpillDirError {errno.EACCES} "), done.stderr
        assert "make it writable" in told and list(place.iterdir()) == []

    def test_a_file_system_that_cannot_reserve(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuses(fd: int, nbytes: int, *, path: str) -> None:
            raise DiskRefusedError("cannot reserve", path=path, errno=errno.EOPNOTSUPP)

        monkeypatch.setattr(leases, "reserve_blocks", refuses)
        before = open_descriptors()
        with pytest.raises(DiskRefusedError, match="cannot reserve"):
            join_run(tmp_path)
        assert list(tmp_path.iterdir()) == []
        assert open_descriptors() == before

    @pytest.mark.parametrize(("name", "told"), [(b"a\nb", "line break"), (b"a\xff", "UTF-8")])
    def test_a_name_that_cannot_be_carried(self, name: bytes, told: str, tmp_path: Path) -> None:
        for ask in (join_run, run_room):
            with pytest.raises(SpillDirError, match=told) as caught:
                ask(tmp_path / os.fsdecode(name))
            str(caught.value).encode()  # it can be printed
        assert list(tmp_path.iterdir()) == []


class TestSpillFiles:
    def test_removed_unless_kept(self, tmp_path: Path) -> None:
        run = join_run(tmp_path)
        with run.create_spill_file(5000) as file:
            assert os.fstat(file.fd).st_blocks * 512 >= 5000
        assert not Path(file.path).exists()
        with pytest.raises(KeyboardInterrupt), run.create_spill_file(10):
            raise KeyboardInterrupt
        with run.create_spill_file(70) as file:
            file.keep()
        assert run.nbytes == 70

    def test_the_floor_stays_free(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = join_run(tmp_path)
        monkeypatch.setattr(spill_files, "total_disk_bytes", lambda path: 10_000)
        monkeypatch.setattr(spill_files, "free_disk_bytes", lambda path: 1_000)
        with pytest.raises(DiskRefusedError, match="5%") as caught:
            run.create_spill_file(501)
        assert (caught.value.needed_bytes, caught.value.available_bytes) == (501, 500)
        with run.create_spill_file(500):
            pass

    def test_a_race_for_the_floor_gives_the_blocks_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = join_run(tmp_path)
        free = [10_000, 100]
        monkeypatch.setattr(spill_files, "total_disk_bytes", lambda path: 10_000)
        monkeypatch.setattr(spill_files, "free_disk_bytes", lambda path: free.pop(0))
        before = open_descriptors()
        with pytest.raises(DiskRefusedError, match="5%"):
            run.create_spill_file(100)
        assert list(run.directory.glob("spill_*")) == []
        assert open_descriptors() == before

    def test_the_limit_of_a_run(self, tmp_path: Path) -> None:
        run = join_run(tmp_path)
        before = open_descriptors()
        with ov.settings(disk_limit_bytes=100):
            with run.create_spill_file(60) as file:
                file.keep()
            with pytest.raises(DiskRefusedError, match="OVERSPILL_DISK_LIMIT") as caught:
                run.create_spill_file(41)
            with run.create_spill_file(40):
                pass
        assert (caught.value.needed_bytes, caught.value.available_bytes) == (41, 40)
        assert open_descriptors() == before

    def test_a_process_forked_meanwhile_does_not_hold_the_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, real = join_run(tmp_path), spill_files.require_within_limit
        wakes, sleeps = os.pipe()
        children: list[int] = []

        def forking(run_dir: Path, nbytes: int, limit: int) -> None:
            child = os.fork()
            if child == 0:  # as another thread's child: it never leaves the block
                os.close(sleeps)
                os.read(wakes, 1)
                os._exit(0)
            children.append(child)
            real(run_dir, nbytes, limit)

        monkeypatch.setattr(spill_files, "require_within_limit", forking)
        try:
            with ov.settings(disk_limit_bytes=100), run.create_spill_file(60):
                pass
            with (run.directory / "ledger").open("rb") as ledger:
                assert lock_exclusive(ledger.fileno())
        finally:
            os.close(sleeps)
            os.close(wakes)
            for child in children:
                os.waitpid(child, 0)
