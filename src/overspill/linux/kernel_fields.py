"""The lines "Name:  123 kB" in which /proc tells memory: meminfo, status, smaps_rollup."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from overspill.errors import UnavailableError
from overspill.linux.remedies import OPEN_FILES

_REMEDIES = {errno.ENOENT: "mount /proc, and let it be read"}


def read_fields(
    path: Path, *, wanted: str, remedies: Mapping[int, str] = _REMEDIES
) -> dict[str, int]:
    """Read the lines of one file that count kibibytes.

    Args:
        path: The file.
        wanted: What cannot be done without it, as the error's first words.
        remedies: By errno.

    Returns:
        Bytes by name; lines of another form are left out.

    Raises:
        UnavailableError: It cannot be read.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        number = error.errno or errno.EIO
        raise UnavailableError(
            f"{wanted}: {os.strerror(number)}",
            path=str(path),
            errno=number,
            remedy={**OPEN_FILES, **remedies}.get(
                number, "let it read /proc (mounted, and without hidepid)"
            ),
        ) from error
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found
