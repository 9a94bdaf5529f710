"""Files without a name on the spill directory's disk: gone with the last process that holds them.

What is on its way from one process to another goes here: whichever of them is killed, the kernel
frees the blocks with the last descriptor and mapping, so that nothing is ever left to clean up, and
no lease is needed. Under a disk limit they count among the files of the run, by the kernel's own
account (see `overspill.linux.locks`). Its pages may never reach the device, if they are taken in
soon enough.

Limit: the account is this machine's; what the run's processes hold on another one is not seen.
"""

from __future__ import annotations

import errno
import functools
import os
from contextlib import ExitStack
from pathlib import Path

from overspill.linux.blocks import reserve_blocks
from overspill.storage.spill_dirs import require_spill_dir, unusable
from overspill.storage.spill_files import (
    count_nameless,
    create_spill_file,
    refused_file,
    require_floor,
    within_limit,
)
from overspill.storage.workspace import join_run

# From a file system without O_TMPFILE, and from a kernel that does not know the flag.
_UNKNOWN = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS})


def open_nameless_file(
    spill_dir: Path,
    nbytes: int,
    *,
    disk_limit_bytes: int | None = None,
    allow_cow_disk: bool = False,
) -> int:
    """Make a file without a name, every block of it reserved.

    Args:
        spill_dir: The spill directory; made if missing.
        nbytes: The size, at least 1.
        disk_limit_bytes: What all files of the run may hold together, over all its processes: its
            named ones, and the nameless ones made under a limit, for as long as any process has
            them open or mapped. None is no limit, and leaves the new one uncounted.
        allow_cow_disk: Accept a copy-on-write disk, whose reservations may fail later.

    Returns:
        A descriptor, open for reading and writing, not inherited by exec; the caller closes it.

    Raises:
        SpillDirError: The directory cannot hold files: unwritable, memory in disguise, ....
        DiskRefusedError: The disk, its floor or the limit stands against it; nothing is left.
    """
    _usable(spill_dir, allow_cow_disk)
    if disk_limit_bytes is None:
        return _reserved(spill_dir, nbytes)
    run_dir = join_run(spill_dir).directory
    with within_limit(run_dir, nbytes, disk_limit_bytes):
        fd = _reserved(spill_dir, nbytes)
        count_nameless(fd, run_dir, nbytes)
    return fd


def _reserved(spill_dir: Path, nbytes: int) -> int:
    require_floor(spill_dir, nbytes, reserved=False)
    try:
        fd = os.open(spill_dir, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | os.O_EXCL, 0o600)
    except OSError as error:
        if error.errno in _UNKNOWN:
            return _unlinked_at_once(spill_dir, nbytes)
        _usable.cache_clear()
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise refused_file(error, "cannot create a file", str(spill_dir), nbytes) from error
        raise unusable(error, spill_dir) from error
    with ExitStack() as undo:
        undo.callback(os.close, fd)
        reserve_blocks(fd, nbytes, path=str(spill_dir))
        # Again, because somebody else may have reserved at the same moment.
        require_floor(spill_dir, nbytes, reserved=True)
        undo.pop_all()
    return fd


@functools.lru_cache(maxsize=8)
def _usable(spill_dir: Path, allow_cow_disk: bool) -> None:
    # Once a process: the mount table takes longer to read than the file to make.
    require_spill_dir(spill_dir, allow_cow_disk=allow_cow_disk)


def _unlinked_at_once(spill_dir: Path, nbytes: int) -> int:
    """A file of the run that loses its name here; killed before that, the run's end removes it."""
    # Without a limit: the caller holds it.
    with create_spill_file(join_run(spill_dir).directory, nbytes) as file:
        try:
            return os.dup(file.fd)
        except OSError as error:
            raise refused_file(error, "cannot hold a file", file.path, nbytes) from error
