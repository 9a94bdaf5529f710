"""The physical limits of sequential writing and reading: what the device does past the page cache.

Bottleneck: the device. Algorithm: pieces of 8 MiB, four in flight: on a virtual disk one in flight
left a third of the device unused, and more than four gained nothing. One buffer serves every write,
one a thread every read, so that no memory but a few pieces takes part.

Limits: where the file system has no direct I/O, the same goes through the page cache, and what is
measured is the kernel's way to the device.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from overspill.errors import DiskRefusedError, StaleFileError
from overspill.linux.blocks import refused, reserve_blocks
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, aligned_bytes, set_direct

_IN_FLIGHT = 4
_PIECE_BYTES = 8 << 20


def write_sequentially(path: Path, nbytes: int, pattern: bytes) -> bool:
    """Write a new file with O_DIRECT into reserved blocks, four writes in flight, and sync it.

    Args:
        path: The file to make; the caller removes it, also after an error.
        nbytes: Its size, rounded up to whole blocks of 4096 bytes.
        pattern: What fills the buffer, again and again.

    Returns:
        Whether the page cache was passed by; False: the file system has no direct I/O.

    Raises:
        DiskRefusedError: The disk refused, or the file exists.
    """
    size = -(-nbytes // DIRECT_ALIGNMENT_BYTES) * DIRECT_ALIGNMENT_BYTES
    fd = _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    # A mapping is aligned to a page, as O_DIRECT wants it.
    with mmap.mmap(-1, max(1, min(_PIECE_BYTES, size))) as buffer:
        buffer.write((pattern * (len(buffer) // len(pattern) + 1))[: len(buffer)])
        try:
            reserve_blocks(fd, size, path=str(path))
            direct = set_direct(fd, True)
            with memoryview(buffer) as held:
                _write_pieces(fd, held, size)
            os.fsync(fd)
        except OSError as error:
            if isinstance(error, DiskRefusedError):
                raise
            raise refused(error, "cannot write", fd, str(path), size) from error
        finally:
            os.close(fd)
    return direct


def read_sequentially(path: Path) -> int:
    """Read a whole file with O_DIRECT, four reads in flight; its cache should be dropped before.

    Args:
        path: The file.

    Returns:
        The bytes read.

    Raises:
        StaleFileError: The file is not there.
        DiskRefusedError: The disk refused.
    """
    fd = _opened(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        set_direct(fd, True)
        return _read_pieces(fd, size)
    except OSError as error:
        raise refused(error, "cannot read", fd, str(path), None) from error
    finally:
        os.close(fd)


def _opened(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError as error:
        raise StaleFileError(
            "the file or its directory does not exist",
            path=str(path),
            errno=error.errno,
            remedy="make the directory first",
        ) from error
    except OSError as error:
        raise DiskRefusedError(
            f"cannot open the file: {error.strerror}",
            path=str(path),
            errno=error.errno,
            remedy="choose a directory that can be written",
        ) from error


def _write_pieces(fd: int, held: memoryview, size: int) -> None:
    def write(offset: int) -> None:
        with held[: min(len(held), size - offset)] as piece:
            if os.pwrite(fd, piece, offset) != len(piece):
                raise OSError(errno.EIO, f"a short write at {offset}")

    with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="overspill-write") as pool:
        for _ in pool.map(write, range(0, size, _PIECE_BYTES)):
            pass


def _read_pieces(fd: int, size: int) -> int:
    own = threading.local()

    def read(offset: int) -> int:
        if not hasattr(own, "memory"):
            own.memory = aligned_bytes(_PIECE_BYTES)
        # Whole blocks, past the end too, where the last one is short.
        return os.preadv(fd, [own.memory.data], offset)

    with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="overspill-read") as pool:
        return sum(pool.map(read, range(0, size, _PIECE_BYTES)))
