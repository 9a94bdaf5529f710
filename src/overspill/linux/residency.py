"""Whether mincore(2) tells this process the truth about a file.

To others than its owner, those who may write it, and holders of CAP_FOWNER over it, the kernel says
that every page is present (since Linux 5.2). In a user namespace a capability holds over those
files alone whose owner the namespace has a number for: root in a container may see nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from overspill.errors import StaleFileError

_STATUS, _UID_MAP = Path("/proc/self/status"), Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
_CAP_FOWNER = 1 << 3
_ALL_IDS = ["0", "0", str(2**32 - 1)]


def shows_residency(path: Path) -> bool:
    """Whether the kernel tells this process which pages of a file are present.

    Where it cannot be known, the answer is no: pages are then asked for needlessly, where taken for
    present a cold file would be read page by page, unasked.

    Raises:
        StaleFileError: There is no such file.
    """
    try:
        owner = path.stat().st_uid
    except OSError as error:
        raise StaleFileError(
            f"cannot find the file: {error.strerror}",
            path=str(path),
            errno=error.errno,
            remedy="check the path, and that no other process removes it",
        ) from error
    if os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return True
    return _is_known(owner) and (os.geteuid() == owner or _may_act_as_owner())


def _is_known(owner: int) -> bool:
    """Whether a number that stat gave can only be the owner's own."""
    held = _read(_UID_MAP)
    # Without namespaces, or in the first one, every number is.
    if held is None or held.split() == _ALL_IDS:
        return True
    return str(owner) != (_read(_OVERFLOW_UID) or str(owner)).strip()


def _may_act_as_owner() -> bool:
    for line in (_read(_STATUS) or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _CAP_FOWNER)
    return False


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
