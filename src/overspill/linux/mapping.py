"""The one place that maps files into memory.

A mapping keeps no descriptor, so thousands of them cost no descriptors, and goes when the last
array or tensor over it goes. Private mappings are copy-on-write: a stray write stays in its
process and never reaches the file. Mappings are limited by vm.max_map_count (65,530 by default).

A file that shrinks under a mapping kills its readers by SIGBUS: files are therefore replaced by
rename and never rewritten in place, and identity and size are checked before and after mapping.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import weakref
from pathlib import Path
from typing import Any, NoReturn

from overspill.errors import MappingError, OverspillError, StaleFileError
from overspill.linux import libc
from overspill.linux.identity import FileIdentity, identify_file
from overspill.linux.paths import require_path, require_regular_file

_MAP_NORESERVE = 0x4000
_REMEDIES = {
    errno.ENOMEM: "raise vm.max_map_count (mappings a process), or check vm.overcommit_memory and "
    "ulimit -v; fewer, larger files need fewer mappings",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max)",
    errno.EACCES: "make the file readable, and writable for a shared mapping",
    errno.EPERM: "make the file readable, and writable for a shared mapping",
    errno.EROFS: "map it privately, or choose a directory that can be written",
    errno.ENODEV: "move the file to a file system that supports mapping",
}


class Mapping:
    """Bytes of a file as memory, from `map_file`; ``np.asarray(mapping)`` is the uint8 view.

    The view, and every array or tensor made of it, keeps the mapping alive. Threads may share one;
    a forked child inherits it (a private one copy-on-write) and unmaps only its own. It does not
    pickle: send the path and the identity and map again.

    Attributes:
        address: Where it starts; 0 when it has no bytes.
        nbytes: Its length in bytes.
        path: The absolute path the file was mapped from.
        identity: The file's identity when it was mapped.
        shared: Whether writes reach the file.
    """

    __slots__ = ("__weakref__", "address", "identity", "nbytes", "path", "shared")

    def __init__(self, address: int, path: str, identity: FileIdentity, *, shared: bool) -> None:
        self.address = address
        self.nbytes = identity.nbytes
        self.path = path
        self.identity = identity
        self.shared = shared
        if self.nbytes:
            # Not at exit: other threads and late destructors may still read, and the kernel unmaps.
            weakref.finalize(self, _unmap, address, self.nbytes).atexit = False

    @property
    def __array_interface__(self) -> dict[str, Any]:
        data = (self.address, False) if self.nbytes else b""
        return {"version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": data}

    def __repr__(self) -> str:
        kind = "shared" if self.shared else "private"
        return f"Mapping({self.path!r}, nbytes={self.nbytes}, {kind})"

    def __reduce__(self) -> NoReturn:
        raise MappingError(
            "a mapping belongs to its process and does not pickle",
            path=self.path,
            remedy="send the path and the identity, and map the file again",
        )


def map_file(
    path: str | Path, *, nbytes: int, shared: bool = False, identity: FileIdentity | None = None
) -> Mapping:
    """Map a whole file. Reads none of it, never creates, grows or changes it, keeps no descriptor.

    Args:
        path: An existing regular file.
        nbytes: The size it must have, exactly; 0 gives a mapping without memory.
        shared: Map writable and shared (the file must be writable) instead of copy-on-write.
        identity: The identity it must have, as `identify_file` gave it.

    Returns:
        The mapping, writable memory either way.

    Raises:
        StaleFileError: The file is missing, has another size, or is another file than ``identity``.
        MappingError: It cannot be opened or mapped: permissions, limits, no regular file.
        InputError: The path is none, or holds a NUL byte.
        UnavailableError: This is not 64-bit Linux.
    """
    libc.require_linux("mapping a file")
    name = os.path.abspath(require_path(path))  # noqa: PTH100 - resolve() would follow links
    # Before the open, which a device may act upon.
    require_regular_file(name)
    fd = _open(name, shared=shared)
    try:
        found = identify_file(fd)
        _check(found, name, nbytes, identity, os.fstat(fd).st_mode)
        address = _map(fd, name, nbytes, shared=shared) if nbytes else 0
    finally:
        os.close(fd)
    # From here on the object owns the memory, whatever happens next.
    return _unchanged(Mapping(address, name, found, shared=shared))


def require_mappable(nbytes: int) -> None:
    """Make sure that the limits on mappings leave room for one of this size.

    For what maps by other means and does not clean up when it fails: torch leaves the file open,
    which keeps its blocks taken. Touches and commits no memory.

    Raises:
        MappingError: They do not.
        UnavailableError: This is not 64-bit Linux.
    """
    libc.require_linux("mapping a file")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        mmap.mmap(-1, nbytes, flags=flags, prot=mmap.PROT_READ).close()
    except OSError as error:
        raise _refused(error, f"cannot map {nbytes} bytes", "memory", nbytes) from error


def _open(name: str, *, shared: bool) -> int:
    # O_NONBLOCK: opening a FIFO by mistake must not hang; it changes nothing for regular files.
    flags = (os.O_RDWR if shared else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(name, flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise StaleFileError(
                "the file does not exist",
                path=name,
                errno=error.errno,
                remedy="make the file again, or open the path it now has",
            ) from error
        raise _refused(error, "cannot open the file for mapping", name, None) from error


def _unchanged(mapping: Mapping) -> Mapping:
    """Between the check and the mapping the file may have been replaced or cut short."""
    path, before = mapping.path, mapping.identity
    try:
        if identify_file(path) == before:
            return mapping
    except StaleFileError:  # gone meanwhile
        pass
    del mapping  # an error's traceback would keep it
    raise StaleFileError(
        "the file was replaced, removed or resized while it was being mapped",
        path=path,
        remedy="open it again; writers must replace files by rename, not in place",
    )


def _check(
    found: FileIdentity, name: str, nbytes: int, wanted: FileIdentity | None, mode: int
) -> None:
    if not stat.S_ISREG(mode):
        raise MappingError("not a regular file", path=name, remedy="give the path of a file")
    if wanted is not None and (found.device, found.inode, found.birth_time_ns) != (
        wanted.device,
        wanted.inode,
        wanted.birth_time_ns,
    ):
        raise StaleFileError(
            "another file stands at this path now",
            path=name,
            remedy="open the file again by its path",
        )
    if found.nbytes != nbytes:
        raise StaleFileError(
            f"the file has {found.nbytes} bytes and must have exactly {nbytes}",
            path=name,
            needed_bytes=nbytes,
            available_bytes=found.nbytes,
            remedy="make the file again; it was cut short, grew, or is not what was meant",
        )


def _map(fd: int, name: str, nbytes: int, *, shared: bool) -> int:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    # NORESERVE: a private mapping bigger than memory would otherwise count as memory to commit.
    flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE | _MAP_NORESERVE
    try:
        return libc.call("mmap", None, nbytes, protection, flags, fd, 0)
    except OSError as error:
        raise _refused(error, f"cannot map {nbytes} bytes", name, nbytes) from error


def _refused(error: OSError, what: str, name: str, nbytes: int | None) -> OverspillError:
    number = error.errno or errno.EINVAL
    return MappingError(
        f"{what}: {os.strerror(number)}",
        path=name,
        errno=number,
        needed_bytes=nbytes,
        remedy=_REMEDIES.get(number, "check the file and its file system"),
    )


def _unmap(address: int, nbytes: int) -> None:
    libc.call("munmap", address, nbytes)
