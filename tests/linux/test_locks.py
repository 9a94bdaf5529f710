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
from overspill.linux.locks import lock_exclusive, lock_shared, unlock


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
