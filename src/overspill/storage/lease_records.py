"""What a run writes into its lease: who began it, where and when. For people; the lock decides.

A run's directory may be written by others than Overspill, so what is read is text of unknown
origin: anything that does not fit is left out, and nothing is acted upon but its format name.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from dataclasses import dataclass
from typing import Any

from overspill.linux.identity import host_identity

LEASE_BYTES = 4096
_FORMAT = "overspill-run"
_MOST_COMMAND_BYTES = 2048  # as JSON writes it
_MOST_TEXT = 2048
_LARGEST_PID = 1 << 31
_LATEST_S = 1e11


@dataclass(frozen=True)
class LeaseRecord:
    """Who began a run; each part None where the lease does not tell.

    Attributes:
        host: The machine and its boot, as `host_identity` names them.
        pid: The process that began it, in its own numbering.
        started_s: When, in seconds since 1970, by that machine's clock.
        command: The command line of that process.
        marked: Whether each holder of the lease has marked it, so that it can be asked about
            without being locked.
        signed: Whether it was ever written; its founder may have died before.
    """

    host: str | None = None
    pid: int | None = None
    started_s: float | None = None
    command: str | None = None
    marked: bool = False
    signed: bool = True

    @property
    def asks_marks(self) -> bool:
        """Whether marks alone tell of holders: a founder marks its lease before it signs it."""
        return self.marked or not self.signed


def lease_text(run: str, *, marked: bool) -> bytes:
    """What a new run's lease holds, `LEASE_BYTES` long.

    Args:
        run: The run's identifier.
        marked: Whether its holders mark it.
    """
    told = {
        "format": _FORMAT,
        "version": 1,
        "run": run,
        "host": host_identity(),
        "pid": os.getpid(),
        "started": time.time(),
        "command": _shortened(shlex.join(sys.orig_argv)),
        "marked": marked,
    }
    return json.dumps(told, allow_nan=False).encode().ljust(LEASE_BYTES)


def read_lease(fd: int) -> LeaseRecord | None:
    """Read a lease.

    Args:
        fd: The lease, open for reading.

    Returns:
        What it tells; None for one that is not of this format.

    Raises:
        OSError: It cannot be read.
    """
    text = os.pread(fd, LEASE_BYTES, 0).strip(b"\0 ")
    if not text:  # its founder died between making and writing it
        return LeaseRecord(signed=False)
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        return None
    return LeaseRecord(
        host=_text(told.get("host")),
        pid=_number(told.get("pid"), _LARGEST_PID, int),
        started_s=_number(told.get("started"), _LATEST_S, int, float),
        command=_text(told.get("command")),
        marked=told.get("marked") is True,
    )


def _shortened(text: str) -> str:
    """A text of which JSON makes no more bytes than fit the lease."""
    if _json_bytes(text) <= _MOST_COMMAND_BYTES:
        return text
    while (taken := _json_bytes(text)) > _MOST_COMMAND_BYTES - len(" ..."):
        text = text[: len(text) * (_MOST_COMMAND_BYTES - len(" ...")) // taken]
    return f"{text} ..."


def _json_bytes(text: str) -> int:
    return len(json.dumps(text, allow_nan=False))  # all of it ASCII


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= _MOST_TEXT else None


def _number(value: Any, limit: float, *kinds: type) -> Any:
    # Not by isinstance: a bool is an int. A number that is none (NaN) fails the comparison.
    return value if type(value) in kinds and 0 < value < limit else None
