from __future__ import annotations

import fcntl
import os

import pytest

from overspill.linux.pipes import open_wide_pipe


def test_a_wide_pipe_takes_much_before_anyone_reads() -> None:
    reading, writing = open_wide_pipe()
    with reading, writing:
        assert fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ) == 1 << 20
        assert not os.get_inheritable(reading.fileno())
        assert not os.get_inheritable(writing.fileno())
        data = os.urandom(300_000)
        assert writing.write(data) == len(data)
        assert reading.read(len(data)) == data


def test_where_the_system_refuses_it_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    reading, writing = open_wide_pipe()
    with reading, writing:
        assert writing.write(b"x") == 1 and reading.read(1) == b"x"
