"""What a lease tells of its run, and what is made of one that others have written."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overspill.linux.identity import host_identity
from overspill.storage.lease_records import LEASE_BYTES, LeaseRecord, lease_text, read_lease


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Callable[[bytes], int]]:
    opened = []

    def write(text: bytes) -> int:
        (tmp_path / "lease").write_bytes(text)
        opened.append(os.open(tmp_path / "lease", os.O_RDONLY))
        return opened[-1]

    yield write
    for fd in opened:
        os.close(fd)


def test_a_run_tells_who_began_it(lease: Callable[[bytes], int]) -> None:
    record = read_lease(lease(lease_text("ab", marked=True)))
    assert record is not None
    assert (record.host, record.pid) == (host_identity(), os.getpid())
    assert shlex.split(record.command or "") == sys.orig_argv
    assert record.started_s is not None and 0 <= time.time() - record.started_s < 3600
    assert record.marked and record.signed
    assert not read_lease(lease(lease_text("ab", marked=False))).marked  # type: ignore[union-attr]


@pytest.mark.parametrize("word", ["x" * 9000, "\U0001f600" * 1000, '"\\' * 4000, "\udcff" * 3000])
def test_a_long_command_is_cut_so_that_the_lease_stays_whole(
    word: str, lease: Callable[[bytes], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", word])
    text = lease_text("ab" * 16, marked=True)
    assert len(text) == LEASE_BYTES
    record = read_lease(lease(text))
    assert record is not None and record.command is not None
    assert record.command.startswith("python ") and record.command.endswith(" ...")
    assert len(record.command) > 100


@pytest.mark.parametrize("text", [b"", bytes(LEASE_BYTES), b" " * 100])
def test_a_lease_that_nobody_signed(text: bytes, lease: Callable[[bytes], int]) -> None:
    assert read_lease(lease(text)) == LeaseRecord(signed=False)


@pytest.mark.parametrize(
    "text",
    [b"[]", b"{", b'{"format": "rental"}', b"[" * LEASE_BYTES, b"\xff\xfe", b'"overspill-run"'],
)
def test_one_of_another_format(text: bytes, lease: Callable[[bytes], int]) -> None:
    assert read_lease(lease(text)) is None


@pytest.mark.parametrize(
    "told",
    [
        {"pid": -1, "started": -5, "host": "", "command": 7, "marked": 1},
        {"pid": True, "started": "now", "host": ["x"], "command": None, "marked": "yes"},
        {"pid": 1 << 40, "started": 1e300, "host": "h" * 3000, "command": {}},
        {"pid": 1.5, "started": float("nan")},
        {"started": float("inf")},
        {"pid": 10**3000, "started": 10**1000},
    ],
)
def test_what_does_not_fit_is_left_out(
    told: dict[str, object], lease: Callable[[bytes], int]
) -> None:
    text = json.dumps({"format": "overspill-run", **told}).encode()
    assert len(text) <= LEASE_BYTES + 1000
    assert read_lease(lease(text)) in (LeaseRecord(), None)
