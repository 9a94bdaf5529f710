"""The removal of a dead run: what goes, what is kept and why, told beforehand or done.

Only what a run makes goes: by its name, and no directory, whatever its name. The lease goes last.
Whether a run is dead is not asked here: see `leases`.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LEASE_NAME = "lease"
LEDGER_NAME = "ledger"
SPILL_FILE = re.compile(r"spill_[0-9a-f]{16,32}\.bin")
RUN_DIRECTORY = re.compile(r"run-[0-9a-f]{32}")
DEAD_DIRECTORY = re.compile(r"dead-[0-9a-f]{32}")


@dataclass(frozen=True)
class Reclaimed:
    """What a dead run had left.

    Attributes:
        directory: Where it was; of one that is kept, where it is.
        files: How many spill files were removed, or would be.
        nbytes: Their bytes.
        kept: Why the directory is still there, or would be; None where it goes.
        is_others: Whether it is kept for another user, or another machine, to remove.
    """

    directory: Path
    files: int
    nbytes: int
    kept: str | None = None
    is_others: bool = False


def is_removable(run_dir: Path) -> bool:
    """Whether this user may remove a run: write its lease, change its directory, and take it away.

    What is gone, or cannot be asked, is left to whoever removes it.
    """
    lease, user = run_dir / LEASE_NAME, os.geteuid()
    try:
        above, own = run_dir.parent.stat(), run_dir.stat(follow_symlinks=False)
    except OSError:
        return True
    if above.st_mode & stat.S_ISVTX and user not in (0, above.st_uid, own.st_uid):
        return False
    if not os.access(run_dir.parent, os.W_OK | os.X_OK):
        return False
    return not os.path.lexists(lease) or (
        os.access(run_dir, os.W_OK | os.X_OK) and os.access(lease, os.R_OK | os.W_OK)
    )


def _told_foreign(names: set[str]) -> str:
    return f"it holds files that no run makes: {sorted(names)}"


def _told_others(place: int) -> str:
    return f"user {os.geteuid()} may not remove it; it belongs to user {os.fstat(place).st_uid}"


def _removable_bytes(name: str, place: int) -> int | None:
    """The size of a file that a run has made by its name; None of anything else."""
    if name != LEDGER_NAME and not SPILL_FILE.fullmatch(name):
        return None
    held = os.stat(name, dir_fd=place, follow_symlinks=False)
    return None if stat.S_ISDIR(held.st_mode) else held.st_size


def list_run(directory: Path, place: int) -> Reclaimed:
    """What `delete_run` would do."""
    if not is_removable(directory):
        return Reclaimed(directory, 0, 0, kept=_told_others(place), is_others=True)
    files = nbytes = 0
    left = set()
    for name in set(os.listdir(place)) - {LEASE_NAME}:
        with suppress(FileNotFoundError):
            size = _removable_bytes(name, place)
            if size is None:
                left.add(name)
            elif name != LEDGER_NAME:
                files, nbytes = files + 1, nbytes + size
    return Reclaimed(directory, files, nbytes, kept=_told_foreign(left) if left else None)


def delete_run(directory: Path, place: int) -> Reclaimed | None:
    """Remove a dead run whose lease the caller has locked.

    Args:
        directory: Its directory.
        place: A descriptor of it.

    Returns:
        What was removed and what was kept; None where it went meanwhile.
    """
    files = nbytes = 0
    dead = directory
    try:
        if RUN_DIRECTORY.fullmatch(directory.name):
            dead = directory.with_name(f"dead-{secrets.token_hex(16)}")
            try:
                directory.rename(dead)
            except FileNotFoundError:  # its founder starts over
                return None
        for name in os.listdir(place):
            size = _removable_bytes(name, place)
            if size is not None:
                os.unlink(name, dir_fd=place)
                if name != LEDGER_NAME:
                    files, nbytes = files + 1, nbytes + size
        left = set(os.listdir(place)) - {LEASE_NAME}
        if left:
            return Reclaimed(dead, files, nbytes, kept=_told_foreign(left))
        with suppress(FileNotFoundError):
            os.unlink(LEASE_NAME, dir_fd=place)
        dead.rmdir()
    except OSError as error:
        return Reclaimed(dead, files, nbytes, kept=f"it could not be removed: {error}")
    return Reclaimed(directory, files, nbytes)
