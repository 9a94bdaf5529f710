"""Storages in /dev/shm whose every block is reserved before the first write to it.

Writing into a segment that the mount cannot hold is SIGBUS, which no ``try`` catches. torch 2.10
and later reserve a segment when they make it; earlier ones do not, so each is looked at here.

A segment of one's own is reserved piece by piece, so that what moves into it is never held twice.
It has no name, so nothing can be left behind, and torch takes it by its descriptor. Under the
file_descriptor strategy torch sends such a storage without a copy. Under file_system it would make
a copy under a name, so there torch makes the segment itself, unless its user sends it by descriptor
(see `overspill.tensors.in_flight`).
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from types import TracebackType
from typing import cast

import torch

from overspill.errors import DiskRefusedError, MappingError, NoRoomError
from overspill.linux import libc
from overspill.linux.blocks import free_blocks, reserve_blocks
from overspill.linux.mapping import require_mappable
from overspill.linux.mounts import free_disk_bytes
from overspill.linux.remedies import OPEN_FILES
from overspill.tensors.torch_errors import told_by_torch
from overspill.units import format_bytes

SHARED_MEMORY = "/dev/shm"
_TORCH_NAME = re.compile(r"</(torch_[\d_]+)>")
_REMEDIES = {
    **OPEN_FILES,
    errno.ENOMEM: "raise the limits on mappings (ulimit -v, vm.max_map_count), or free memory",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
}
_ENLARGE = "enlarge /dev/shm (docker run --shm-size)"


class SharedSegment:
    """Nameless shared memory that is reserved as it is filled; closing it keeps the storage.

    Attributes:
        storage: The memory; touch only what is reserved.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        os.ftruncate(fd, nbytes)
        require_mappable(nbytes)  # torch would leave its copy of the descriptor open
        mapped = torch.UntypedStorage._new_shared_fd_cpu(fd, nbytes)  # type: ignore[attr-defined]
        self.storage = cast(torch.UntypedStorage, mapped)

    def reserve(self, offset: int, nbytes: int) -> None:
        """Take the memory of a range.

        Raises:
            NoRoomError: /dev/shm does not have it.
        """
        try:
            reserve_blocks(self._fd, nbytes, path=SHARED_MEMORY, offset=offset)
        except DiskRefusedError as error:
            raise _no_room(str(error), error.errno, nbytes) from error

    def free(self, offset: int, nbytes: int) -> None:
        """Give the memory of a range back."""
        free_blocks(self._fd, offset, nbytes)

    def close(self) -> None:
        """Close the descriptor; torch holds one of its own."""
        os.close(self._fd)

    def __enter__(self) -> SharedSegment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_segment(nbytes: int, *, by_descriptor: bool = False) -> SharedSegment | None:
    """A segment to be reserved piece by piece.

    Args:
        nbytes: Its size, at least 1.
        by_descriptor: The caller sees to it that the storage is sent by its descriptor, also where
            torch is set to share by name.

    Returns:
        The segment; None where torch is set to share by name, or the system cannot make one.
    """
    if not libc.SUPPORTED or (shares_by_name() and not by_descriptor):
        return None
    try:
        fd = os.open(SHARED_MEMORY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        return SharedSegment(fd, nbytes)
    except (OSError, RuntimeError):  # torch's own word for a failed map
        os.close(fd)
        return None


def shared_storage(nbytes: int) -> torch.UntypedStorage:
    """A storage in shared memory, every block of it reserved.

    Args:
        nbytes: Its size, at least 1.

    Returns:
        The storage, uninitialised; ``share_memory_()`` leaves it where it is.

    Raises:
        NoRoomError: /dev/shm, or the limit on descriptors, does not allow it; nothing is left.
    """
    segment = open_segment(nbytes)
    if segment is not None:
        with segment:
            segment.reserve(0, nbytes)
        return segment.storage
    # A segment that torch makes and cannot fill leaves its name and its descriptor behind.
    free = free_disk_bytes(SHARED_MEMORY) if is_mounted() else nbytes
    if free < nbytes:
        told = f"{format_bytes(free)} are free, and {format_bytes(nbytes)} were wanted"
        raise _no_room(told, errno.ENOSPC, nbytes)
    return _made_by_torch(nbytes)


def require_segment_size(nbytes: int) -> None:
    """Refuse what torch would fail to make a segment of, since it would leave its descriptor open.

    Raises:
        NoRoomError: The limit on the size of a file stands against it.
    """
    try:
        fd = os.open(SHARED_MEMORY, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # nothing can be tried here: torch tells
        return
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        raise _no_room(os.strerror(error.errno or errno.EIO), error.errno, nbytes) from error
    finally:
        os.close(fd)


def _made_by_torch(nbytes: int) -> torch.UntypedStorage:
    try:
        if libc.SUPPORTED:
            require_segment_size(nbytes)
            require_mappable(nbytes)  # torch would leave the segment taken, and open
        made = cast(torch.UntypedStorage, torch.UntypedStorage._new_shared(nbytes))  # type: ignore[no-untyped-call]
    except MappingError as error:
        raise _no_room(str(error), error.errno, nbytes) from error
    except RuntimeError as error:
        raise refused_by_torch(error, nbytes) from error
    if libc.SUPPORTED:
        _require_reserved(made, nbytes)
    return made


def refused_by_torch(error: RuntimeError, nbytes: int) -> NoRoomError:
    """What torch's own word for a refused segment means; the name that it left is removed.

    Args:
        error: What torch raised.
        nbytes: What was wanted.
    """
    told, number = told_by_torch(error)
    for name in _TORCH_NAME.findall(told):
        if name.startswith(f"torch_{os.getpid()}_"):  # made by this very call: its names are random
            Path(SHARED_MEMORY, name).unlink(missing_ok=True)
    return _no_room(told, number, nbytes)


def _require_reserved(storage: torch.UntypedStorage, nbytes: int) -> None:
    opened = None
    try:
        if shares_by_name():
            name = os.fsdecode(storage._share_filename_cpu_()[1])
            fd = opened = os.open(f"{SHARED_MEMORY}{name}", os.O_RDWR | os.O_CLOEXEC)
        else:
            fd = storage._share_fd_cpu_()[0]
        if os.fstat(fd).st_blocks * 512 < nbytes:
            reserve_blocks(fd, nbytes, path=SHARED_MEMORY)
    except OSError as error:
        raise _no_room(str(error), error.errno, nbytes) from error
    finally:
        if opened is not None:
            os.close(opened)


def _no_room(told: str, number: int | None, nbytes: int) -> NoRoomError:
    return NoRoomError(
        f"{SHARED_MEMORY} gave no segment: {told}",
        path=SHARED_MEMORY,
        errno=number,
        needed_bytes=nbytes,
        remedy=_REMEDIES.get(number or 0, _ENLARGE),
    )


def shares_by_name() -> bool:
    """Whether torch is set to share memory by name (file_system) and not by descriptor."""
    strategy: str = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    return strategy == "file_system"


def is_mounted() -> bool:
    """Whether there is a /dev/shm at all."""
    return Path(SHARED_MEMORY).is_dir()
