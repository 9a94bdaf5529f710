"""What torch says of a system call that failed: it gives the error's number as text alone."""

from __future__ import annotations

import re

# "unable to mmap 8 bytes from file <...>: Cannot allocate memory (12)"; a name may hold one too.
_ERRNO = re.compile(r"\((\d+)\)\s*$")


def told_by_torch(error: RuntimeError) -> tuple[str, int | None]:
    """The first line of torch's message, without its stack, and the error number that it names.

    Args:
        error: What torch raised.

    Returns:
        The line, and the number; None where the line names none.
    """
    lines = str(error).splitlines() or [""]
    found = _ERRNO.search(lines[0])
    return lines[0], int(found.group(1)) if found else None
