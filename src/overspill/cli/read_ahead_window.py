"""What is wrong with a disk's read-ahead window, and the one command that sets it; pure.

A window has two costs. A row read by plain indexing of a mapped tensor brings in all of it, which a
memory limit turns into pages evicted before they were used; a small one makes reads in order wait
for the disk at every step. So there is one good size, for every verb that speaks of it.
"""

from __future__ import annotations

_MIB = 1 << 20
GOOD_BYTES = _MIB
# Slower in order only on some disks, and so not held against a disk until it was measured there.
_SHORT_BYTES = 64 << 10


def window_fault(nbytes: int, *, slow_in_order: bool = False) -> str | None:
    """Why a window should be changed; None where it should not.

    Args:
        nbytes: The window.
        slow_in_order: Whether reads of mapped files in order were measured, and found slow.
    """
    if nbytes > GOOD_BYTES:
        return (
            "A row read by plain indexing of a mapped tensor reads that much of the disk; under "
            "a memory limit it evicts what was read before. Loaders and gather ask for their "
            "pages and are not touched; a shorter window costs reads in order a little."
        )
    if nbytes < (GOOD_BYTES if slow_in_order else _SHORT_BYTES):
        return (
            "A sequential read of a mapped file waits for the disk at every step; a longer window "
            "costs plain indexing, of which each row reads all of it."
        )
    return None


def window_command(setting: str) -> str:
    """The command that sets the good size.

    Args:
        setting: The file that holds it, see `overspill.linux.read_ahead`.
    """
    return f"echo {GOOD_BYTES >> 10} | sudo tee {setting}"
