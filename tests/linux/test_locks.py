"""Whole-file locks: between holders, across fork, after SIGKILL."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from overspill.errors import UnavailableError
from overspill.linux import locks
from overspill.linux.locks import (
    flock_owners,
    is_marked,
    lock_exclusive,
    lock_shared,
    mark_span,
    marked_bytes,
    open_locked,
    unlock,
)


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[tuple[int, int]]:
    path = tmp_path / "lock"
    first = os.open(path, os.O_RDWR | os.O_CREAT)
    second = os.open(path, os.O_RDWR)
    yield first, second
    os.close(first)
    os.close(second)


def test_shared_holders_keep_an_exclusive_one_out(holders: tuple[int, int]) -> None:
    first, second = holders
    assert lock_shared(first)
    assert lock_shared(second, blocking=False)
    assert not lock_exclusive(second)
    unlock(first)
    assert lock_exclusive(second)
    assert not lock_shared(first, blocking=False)
    unlock(second)
    assert lock_shared(first)


def test_a_fork_shares_the_lock_and_outlives_its_owner(holders: tuple[int, int]) -> None:
    """The owner is killed; its forked child still holds the run."""
    first, second = holders
    to_test, go = os.pipe(), os.pipe()
    owner = os.fork()
    if owner == 0:
        lock_shared(first)
        child = os.fork()
        if child == 0:
            os.read(go[0], 1)
            os._exit(0)
        os.write(to_test[1], b"%d" % child)
        signal.pause()
    os.close(to_test[1])
    os.read(to_test[0], 20)
    os.close(first)  # this process's copy of the description; the lock is the fork's alone now
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    assert not lock_exclusive(second)
    os.write(go[1], b"x")
    assert lock_exclusive(second, blocking=True)  # waits for the child's end, the event itself
    for fd in (to_test[0], *go):
        os.close(fd)
    os.dup2(second, first)  # the fixture closes both


def test_a_file_system_without_locks_is_an_error(
    holders: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(locks.fcntl, "flock", refused)
    with pytest.raises(UnavailableError, match="local file system") as caught:
        lock_shared(holders[0])
    assert caught.value.errno == errno.ENOLCK


def test_a_system_without_flock_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "fcntl", None)
    with pytest.raises(UnavailableError, match="flock"):
        lock_exclusive(0)


class TestMarks:
    PLACE = (1 << 60) + 4711

    def test_a_mark_lives_as_long_as_its_opening_in_any_process(
        self, holders: tuple[int, int]
    ) -> None:
        copy = os.dup(holders[0])
        assert mark_span(copy, self.PLACE, 100)
        assert marked_bytes(self.PLACE) == 100
        wakes, sleeps = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(sleeps)
            os.read(wakes, 1)
            os._exit(0)
        # The fixture closes the other copy of this opening too late to tell.
        os.dup2(holders[1], holders[0])
        os.close(copy)
        try:
            assert marked_bytes(self.PLACE) == 100  # the child's
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(wakes)
            os.close(sleeps)
        assert marked_bytes(self.PLACE) == 0

    def test_marks_keep_nobody_out_and_add_up_by_place(self, tmp_path: Path) -> None:
        with (tmp_path / "a").open("w+b") as one, (tmp_path / "b").open("w+b") as other:
            assert mark_span(one.fileno(), self.PLACE, 3) and lock_exclusive(one.fileno())
            assert mark_span(other.fileno(), self.PLACE, 1 << 40)
            assert mark_span(other.fileno(), self.PLACE - 7, 1)
            assert marked_bytes(self.PLACE) == 3 + (1 << 40)
            assert marked_bytes(self.PLACE - 7) == 1
        assert marked_bytes(self.PLACE) == 0

    def test_who_asks_for_a_mark_keeps_nobody_out(self, holders: tuple[int, int]) -> None:
        holder, asks = holders
        assert is_marked(asks, 0) is False
        assert lock_shared(holder) and mark_span(holder, 0, 1)
        assert is_marked(asks, 0) is True and is_marked(asks, 1) is False
        assert is_marked(holder, 0) is False  # its own
        unlock(holder)  # the mark is another lock, and stays
        assert is_marked(asks, 0) is True
        assert lock_exclusive(holder) and mark_span(asks, 0, 1)

    def test_a_mark_that_cannot_be_asked_for(
        self, holders: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mark_span(holders[0], 0, 1)
        monkeypatch.setattr(locks.fcntl, "fcntl", _refuses)
        assert is_marked(holders[1], 0) is None
        monkeypatch.setattr(locks, "fcntl", None)
        assert is_marked(holders[1], 0) is None

    def test_where_there_are_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert marked_bytes(self.PLACE, proc=tmp_path) == 0
        with (tmp_path / "a").open("w+b") as file:
            monkeypatch.setattr(locks.fcntl, "fcntl", _refuses)
            assert not mark_span(file.fileno(), self.PLACE, 3)
            monkeypatch.setattr(locks, "fcntl", None)
            assert not mark_span(file.fileno(), self.PLACE, 3)

    def test_an_entry_that_a_page_of_the_list_skipped_is_found_by_the_next_look(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry = "{}: OFDLCK ADVISORY  READ -1 fe:00:{} 5 {}\n"
        waiting = (
            "1: -> OFDLCK ADVISORY  READ -1 fe:00:9 5 99\n2: FLOCK ADVISORY READ 7 0:1:2 5 EOF\n"
        )
        pages = [entry.format(1, 1, 9), waiting + entry.format(1, 1, 9) + entry.format(2, 2, 14)]
        monkeypatch.setattr(Path, "read_text", lambda self: pages.pop(0))
        assert marked_bytes(5, proc=tmp_path) == 5 + 10


def test_the_kernel_lists_who_took_a_lock(holders: tuple[int, int], tmp_path: Path) -> None:
    held = os.fstat(holders[0])
    file = held.st_dev, held.st_ino
    assert file not in flock_owners()
    lock_shared(holders[0])
    assert flock_owners()[file] == {os.getpid()}
    (tmp_path / "locks").write_text(
        "1: FLOCK  ADVISORY  READ 11 fe:00:9 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 12 fe:00:9 0 EOF\n"
        "2: FLOCK  ADVISORY  READ 13 fe:00:9 0 EOF\n3: POSIX  ADVISORY  WRITE 14 fe:00:9 0 EOF\n"
    )
    assert flock_owners(proc=tmp_path) == {(os.makedev(0xFE, 0), 9): {11, 13}}
    assert flock_owners(proc=tmp_path / "none") == {}


def _refuses(*_arguments: object) -> None:
    raise OSError(errno.EINVAL, "Invalid argument")


def test_a_file_is_opened_and_locked_by_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = open_locked(path)
    assert held is not None and open_locked(path) is None
    os.close(held)
    again = open_locked(path, flags=os.O_APPEND)
    assert again is not None
    os.close(again)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        open_locked(link)


def test_a_locked_file_that_was_removed_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"

    def removed(fd: int) -> bool:
        path.unlink()
        return lock_exclusive(fd)

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(locks, "lock_exclusive", removed)
    assert open_locked(path) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
