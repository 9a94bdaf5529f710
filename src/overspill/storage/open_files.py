"""Descriptors that a forked child must not keep: of files that another thread is still writing.

O_CLOEXEC closes at exec alone. A child that is only forked, as a DataLoader's workers are, would
hold each file that the parent was spilling at that moment for as long as it lives: without a
mapping, a use or a name for it, while its blocks stay taken after the parent discarded it, or after
its spill failed because the disk was full.

Limits: a fork from C runs no hook of Python's, and in the instant between open(2) and the entry
here a fork is not seen. What the parent maps is inherited on purpose, mapping by mapping.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_WRITERS: dict[int, int] = {}  # descriptor: the thread that opened it


def close_in_children(fd: int) -> None:
    """Have children forked from here on close this descriptor, until `close_file` has closed it."""
    _WRITERS[fd] = threading.get_ident()


def close_file(fd: int) -> None:
    """Close a descriptor here.

    Raises:
        OSError: As close(2) does; the descriptor is gone all the same.
    """
    # First: a number that is closed may be another file's by the time a fork looks.
    _WRITERS.pop(fd, None)
    os.close(fd)


def _let_go() -> None:
    # The thread that forked is the one that goes on in the child, and may go on with its file.
    mine = threading.get_ident()
    for fd in [fd for fd, thread in _WRITERS.items() if thread != mine]:
        with suppress(OSError):
            close_file(fd)


os.register_at_fork(after_in_child=_let_go)
