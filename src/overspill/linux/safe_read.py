"""Read pages of a mapped file so that one that cannot be read is an error, and not a signal.

A touch of a page that the disk refuses, or that a cut took from the file, ends the process by
SIGBUS. process_vm_readv(2) on the process's own mapping copies up to 1,024 ranges a call from the
page cache, without the interpreter's lock, and stops where a touch would have ended it; preadv(2)
of the same file, one call a range, then names the error. Where a filter forbids the first, probed
once, the second serves alone.

Limits: a cut in the middle of a page leaves zeros after it, which nobody reports; only the file's
size tells.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt

from overspill.errors import MappingError, StaleFileError
from overspill.linux import libc
from overspill.linux.fetch import PAGE_BYTES, reopened
from overspill.linux.mapping import Mapping
from overspill.linux.remedies import OPEN_FILES

logger = logging.getLogger("overspill")

Method = Literal["process_vm_readv", "preadv"]
_VECTORS_A_CALL = 1024  # UIO_MAXIOV
_FORBIDDEN = (errno.EPERM, errno.ENOSYS)
_Pages = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]


class SafeReader:
    """Reads pages of one mapping; holds the mapping and no descriptor.

    Threads may read at the same time, and a forked child may go on using its copy. It does not
    pickle: make a new one over the receiver's own mapping.

    Args:
        mapping: The mapping to read, private and not written to, or shared.
        method: How. "auto" takes the first that this process may use.
    """

    def __init__(self, mapping: Mapping, *, method: Literal["auto"] | Method = "auto") -> None:
        self.mapping = mapping
        self.method: Method = read_method() if method == "auto" else method

    def read(self, first_pages: _Pages, page_counts: _Pages, out: _Bytes) -> None:
        """Read page ranges, one after the other, into memory.

        About 0.5 us a scattered page that is present, 2 us by "preadv"; an absent one is read
        alone, so ask for it first.

        Args:
            first_pages: int64 (ranges,), first page of each range, counted from the file's start;
                within the file.
            page_counts: int64 (ranges,), pages in each range, 1 or more.
            out: Contiguous, room for all pages whole; what lies after the file's end in its last
                page is not defined.

        Raises:
            StaleFileError: The file was cut, replaced or removed.
            MappingError: The disk refused (EIO, ...), or the file cannot be opened again.
        """
        done = 0
        if self.method == "process_vm_readv":
            try:
                done = _copy_ranges(self.mapping.address, first_pages, page_counts, out)
            except OSError as error:
                if error.errno in _FORBIDDEN:
                    # A seccomp filter may have come after the probe.
                    logger.warning("process_vm_readv was withdrawn, falling back to preadv")
                    self.method = "preadv"
        if done < first_pages.size:
            skipped = int(page_counts[:done].sum()) * PAGE_BYTES
            self._read_ranges(first_pages[done:], page_counts[done:], out[skipped:])

    def __reduce__(self) -> NoReturn:
        raise MappingError(
            "a reader of pages belongs to its process and does not pickle",
            path=self.mapping.path,
            remedy="make a new one over the receiver's own mapping",
        )

    def _read_ranges(self, firsts: _Pages, counts: _Pages, out: _Bytes) -> None:
        view, at = out.data, 0
        with reopened(self.mapping) as fd:
            for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
                nbytes = min(count * PAGE_BYTES, self.mapping.nbytes - first * PAGE_BYTES)
                try:
                    read = _fill(fd, view[at : at + nbytes], first * PAGE_BYTES)
                except OSError as error:
                    raise _refused(error, self.mapping) from error
                if read < nbytes:
                    raise _cut(self.mapping, first * PAGE_BYTES + read)
                at += count * PAGE_BYTES


@functools.cache
def read_method() -> Method:
    """The way "auto" reads in this process; probed once, inherited by a fork."""
    if libc.SUPPORTED:
        held = np.arange(8, dtype=np.uint8)
        found = np.zeros(8, dtype=np.uint8)
        vectors = np.array([[held.ctypes.data, held.size]], dtype=np.uint64)
        try:
            if _process_vm_readv(vectors, found) == held.size and (found == held).all():
                return "process_vm_readv"
        except OSError:
            pass
    return "preadv"


def _copy_ranges(address: int, firsts: _Pages, counts: _Pages, out: _Bytes) -> int:
    """Copy ranges until one cannot be; how many were copied whole."""
    vectors = np.empty((firsts.size, 2), dtype=np.uint64)
    np.multiply(firsts, PAGE_BYTES, out=vectors[:, 0], casting="unsafe")
    vectors[:, 0] += np.uint64(address)
    np.multiply(counts, PAGE_BYTES, out=vectors[:, 1], casting="unsafe")
    ends = np.cumsum(counts) * PAGE_BYTES
    done = at = 0
    while done < firsts.size:
        last = min(done + _VECTORS_A_CALL, firsts.size)
        try:
            copied = _process_vm_readv(vectors[done:last], out[at : int(ends[last - 1])])
        except OSError as error:
            if error.errno in _FORBIDDEN:
                raise
            return done
        at += copied
        done = int(np.searchsorted(ends, at, side="right"))
        if done < last:  # it stopped within a range, or before one
            return done
    return done


def _process_vm_readv(vectors: npt.NDArray[np.uint64], out: _Bytes) -> int:
    local = np.array([out.ctypes.data, out.size], dtype=np.uint64)
    return libc.call(
        "process_vm_readv",
        os.getpid(),
        local.ctypes.data,
        1,
        vectors.ctypes.data,
        len(vectors),
        0,
    )


def _fill(fd: int, out: memoryview, offset: int) -> int:
    done = 0
    while done < len(out):
        count = os.preadv(fd, [out[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def _cut(mapping: Mapping, nbytes: int) -> StaleFileError:
    return StaleFileError(
        f"the file was cut while it was read: it ends after {nbytes} of {mapping.nbytes} bytes",
        path=mapping.path,
        needed_bytes=mapping.nbytes,
        available_bytes=nbytes,
        remedy="make the file again, then open it by its path",
    )


def _refused(error: OSError, mapping: Mapping) -> MappingError:
    number = error.errno or errno.EIO
    return MappingError(
        f"cannot read pages of a mapped file: {os.strerror(number)}",
        path=mapping.path,
        errno=number,
        remedy=OPEN_FILES.get(
            number,
            "check the disk's health (dmesg), then take the file from a copy or make it anew",
        ),
    )
