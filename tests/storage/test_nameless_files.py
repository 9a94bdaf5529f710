from __future__ import annotations

import errno
import mmap
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import overspill as ov
from capabilities import requires
from overspill.errors import DiskRefusedError, SpillDirError
from overspill.linux.locks import lock_exclusive
from overspill.storage import nameless_files
from overspill.storage.nameless_files import open_nameless_file
from overspill.storage.run_removal import LEDGER_NAME
from overspill.storage.workspace import join_run, leave_runs, run_room
from spilling import open_descriptors

MIB = 1 << 20


def entries(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def test_every_block_is_reserved_and_there_is_no_name(spill_dir: Path) -> None:
    fd = open_nameless_file(spill_dir, MIB)
    try:
        held = os.fstat(fd)
        assert (held.st_size, held.st_nlink) == (MIB, 0)
        assert held.st_blocks * 512 >= MIB
        assert held.st_mode & 0o777 == 0o600
        assert not os.get_inheritable(fd)
        assert entries(spill_dir) == []
        os.pwrite(fd, b"data", 100)
        assert os.pread(fd, 4, 100) == b"data"
    finally:
        os.close(fd)


@pytest.fixture
def no_tmpfile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system knows no files without a name."""
    real = os.open

    def old(path: object, flags: int, *rest: object, **more: object) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", old)


def test_without_the_flag_a_file_of_the_run_loses_its_name_at_once(
    spill_dir: Path, no_tmpfile: None
) -> None:
    fd = open_nameless_file(spill_dir, MIB)
    try:
        assert (os.fstat(fd).st_size, os.fstat(fd).st_nlink) == (MIB, 0)
        assert [Path(name).name for name in entries(spill_dir)] == ["lease"]
    finally:
        os.close(fd)


def test_the_limit_counts_what_the_run_holds_beside_it(spill_dir: Path) -> None:
    os.close(open_nameless_file(spill_dir, 1000, disk_limit_bytes=1000))
    with pytest.raises(DiskRefusedError, match="OVERSPILL_DISK_LIMIT") as caught:
        open_nameless_file(spill_dir, 1001, disk_limit_bytes=1000)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (1001, 1000)


def held(spill_dir: Path) -> int:
    return join_run(spill_dir).nbytes


class TestTheLimitHoldsForTheSum:
    """Over named and nameless files, and over all processes of the run."""

    def test_a_file_counts_for_as_long_as_it_is_open_or_mapped(self, spill_dir: Path) -> None:
        first = open_nameless_file(spill_dir, 600, disk_limit_bytes=1000)
        copy = os.dup(first)
        os.close(first)
        mapped = mmap.mmap(copy, 600)
        os.close(copy)
        with pytest.raises(DiskRefusedError, match="OVERSPILL_DISK_LIMIT") as caught:
            open_nameless_file(spill_dir, 401, disk_limit_bytes=1000)
        assert (caught.value.needed_bytes, caught.value.available_bytes) == (401, 400)
        second = open_nameless_file(spill_dir, 400, disk_limit_bytes=1000)
        assert held(spill_dir) == 1000
        os.close(second)
        assert held(spill_dir) == 600
        mapped.close()
        assert held(spill_dir) == 0

    def test_named_files_and_nameless_ones_count_together(self, spill_dir: Path) -> None:
        with ov.settings(disk_limit_bytes=1000):
            run = join_run(spill_dir)
            with run.create_spill_file(500):
                fd = open_nameless_file(spill_dir, 300, disk_limit_bytes=1000)
                assert run_room(spill_dir) == 200
                with pytest.raises(DiskRefusedError, match=r"800 B of the 1000 B"):
                    run.create_spill_file(201)
                os.close(fd)
                with run.create_spill_file(500):
                    assert run_room(spill_dir) == 0

    def test_a_process_that_is_killed_leaves_no_account(self, spill_dir: Path) -> None:
        join_run(spill_dir)
        told, tells = os.pipe()
        child = os.fork()
        if child == 0:
            open_nameless_file(spill_dir, 600, disk_limit_bytes=1000)
            os.write(tells, b".")
            signal.pause()
        try:
            os.read(told, 1)
            with pytest.raises(DiskRefusedError, match=r"600 B of the 1000 B"):
                open_nameless_file(spill_dir, 401, disk_limit_bytes=1000)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(told)
            os.close(tells)
        assert held(spill_dir) == 0
        os.close(open_nameless_file(spill_dir, 1000, disk_limit_bytes=1000))

    def test_a_file_on_its_way_through_a_socket_counts(self, spill_dir: Path) -> None:
        mine, theirs = socket.socketpair()
        with mine, theirs:
            fd = open_nameless_file(spill_dir, 600, disk_limit_bytes=1000)
            socket.send_fds(mine, [b"."], [fd])
            os.close(fd)
            assert held(spill_dir) == 600
        assert held(spill_dir) == 0

    def test_without_the_flag_too(self, spill_dir: Path, no_tmpfile: None) -> None:
        fd = open_nameless_file(spill_dir, 600, disk_limit_bytes=1000)
        assert held(spill_dir) == 600
        with pytest.raises(DiskRefusedError, match="OVERSPILL_DISK_LIMIT"):
            open_nameless_file(spill_dir, 401, disk_limit_bytes=1000)
        os.close(fd)
        assert held(spill_dir) == 0

    def test_another_run_has_its_own_account(self, spill_dir: Path) -> None:
        fd = open_nameless_file(spill_dir, 600, disk_limit_bytes=1000)
        leave_runs()
        os.close(open_nameless_file(spill_dir, 1000, disk_limit_bytes=1000))
        os.close(fd)

    def test_two_at_a_time_do_not_both_take_the_rest(
        self, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From the look to the mark the run's other processes are held up."""
        seen: list[bool] = []
        real = nameless_files.count_nameless

        def look(fd: int, run_dir: Path, nbytes: int) -> None:
            with (run_dir / LEDGER_NAME).open("rb") as ledger:
                seen.append(lock_exclusive(ledger.fileno()))
            real(fd, run_dir, nbytes)

        monkeypatch.setattr(nameless_files, "count_nameless", look)
        os.close(open_nameless_file(spill_dir, 600, disk_limit_bytes=1000))
        assert seen == [False]


def test_more_than_the_disk_is_refused_and_nothing_is_left(spill_dir: Path) -> None:
    spill_dir.mkdir()
    before = open_descriptors()
    with pytest.raises(DiskRefusedError) as caught:
        open_nameless_file(spill_dir, 1 << 52)
    assert caught.value.errno == errno.ENOSPC
    assert entries(spill_dir) == [] and open_descriptors() == before


@requires("loop_device")
def test_a_full_disk_gives_back_what_it_had_reserved(loop_disk: Callable[[int], Path]) -> None:
    place = loop_disk(16 * MIB)
    free = os.statvfs(place).f_bavail
    with pytest.raises(DiskRefusedError):
        open_nameless_file(place, 15 * MIB)
    assert os.statvfs(place).f_bavail == free


@requires("private_mount")
def test_memory_in_disguise_is_refused(memory_disk: Callable[..., Path]) -> None:
    with pytest.raises(SpillDirError, match="which is memory"):
        open_nameless_file(memory_disk("tmpfs"), 4096)


def test_a_directory_that_was_removed_is_an_error_and_then_made_again(spill_dir: Path) -> None:
    os.close(open_nameless_file(spill_dir, 4096))
    spill_dir.rmdir()
    with pytest.raises((SpillDirError, DiskRefusedError)):
        open_nameless_file(spill_dir, 4096)
    nameless_files._usable.cache_clear()
    os.close(open_nameless_file(spill_dir, 4096))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, DiskRefusedError),
        (errno.ENFILE, DiskRefusedError),
        (errno.EACCES, SpillDirError),
        (errno.EROFS, SpillDirError),
        (errno.ENOSPC, DiskRefusedError),
        (errno.EDQUOT, DiskRefusedError),
    ],
)
def test_what_the_system_refuses_is_a_named_error(
    number: int, kind: type[OSError], spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(open_nameless_file(spill_dir, 4096))

    def refuse(*_args: object, **_more: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(kind) as caught:
        open_nameless_file(spill_dir, 4096)
    assert caught.value.errno == number
    assert ("ulimit -n" in str(caught.value)) == (number == errno.EMFILE)
