"""A scratch file of blocks, each belonging to a range, with its table in memory.

One file and one descriptor whatever the number of ranges. The table takes 25 bytes a block: 3 MB
at a thousand million edges. Blocks of whole pages are written and read past the page cache, in
order and by range; others, and where the file system has no direct I/O, go through it behind a
bounded window of dirty pages. The file is removed at the end.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.build.passes.blocks import READERS as READERS
from overspill.build.passes.blocks import Blocks as Blocks
from overspill.build.passes.blocks import Hub as Hub
from overspill.build.remedies import DIRECTORY_ALONE
from overspill.build.whole_reads import fill_from
from overspill.errors import DiskRefusedError, FormatError
from overspill.linux.blocks import refused, reserve_blocks, write_all
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, set_direct
from overspill.storage.write_behind import WriteBehind

Ids = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_SMALLEST_EXTENT_BYTES, _LARGEST_EXTENT_BYTES = 1 << 20, 64 << 20
_ADVICE_BYTES = 128 << 10  # longer requests are silently cut to the read-ahead window
_MOST_PIECES = 512  # of one call; the system takes 1024


def most_reserved_bytes(nbytes: int) -> int:
    """The most that a scratch file of so many bytes has of the disk while it is written."""
    return nbytes + min(_LARGEST_EXTENT_BYTES, max(_SMALLEST_EXTENT_BYTES, nbytes))


class ScratchFile:
    """A file that is reserved ahead of its writer, kept out of the cache, and removed at the end.

    Args:
        path: Where it goes; nothing is there.
        paged: Everything is written and read in whole pages, from and to addresses at whole pages:
            past the cache where the file system can.

    Raises:
        DiskRefusedError: The disk refused; the file is removed when the block is left.
    """

    def __init__(self, path: Path, *, paged: bool = False) -> None:
        self.path = path
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self.fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise DiskRefusedError(
                f"{path} cannot be made: {error.strerror}",
                path=str(path),
                errno=error.errno,
                remedy="choose a directory that can be written and has room",
            ) from error
        self._direct = paged and set_direct(self.fd, True)
        self._out = WriteBehind(self.fd, path=str(path))
        self._reserved = 0

    def append(self, *pieces: memoryview) -> None:
        """Write bytes at the end, reserving an extent at a time before the first write to it."""
        end = self._out.offset + sum(map(len, pieces))
        if end > self._reserved:
            # As much again as there is: a nearly full disk is not asked for much too much.
            ahead = min(_LARGEST_EXTENT_BYTES, max(_SMALLEST_EXTENT_BYTES, self._reserved))
            self._reserved = max(end, self._reserved + ahead)
            reserve_blocks(self.fd, self._reserved, path=str(self.path))
        for start in range(0, len(pieces), _MOST_PIECES):
            some = pieces[start : start + _MOST_PIECES]
            if self._direct:
                self._append_direct(some)
            else:
                for piece in some:
                    self._out.append(piece)

    def seal(self) -> int:
        """Write back what is left, give back what was reserved too much; returns the size."""
        if not self._direct:
            self._out.drain()
        try:
            os.ftruncate(self.fd, self._out.offset)
        except OSError as error:
            raise refused(error, "cannot shorten", self.fd, str(self.path), None) from error
        return self._out.offset

    def keep(self) -> None:
        """Make what was sealed durable and close it; it stays, and is no scratch file any more."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise refused(error, "cannot sync", self.fd, str(self.path), None) from error
        os.close(self.fd)
        self.fd = -1

    def ask(self, offset: int, nbytes: int) -> None:
        """Start reading a range ahead, where it is going to be read through the cache."""
        if self._direct:
            return
        for start in range(offset, offset + nbytes, _ADVICE_BYTES):
            length = min(_ADVICE_BYTES, offset + nbytes - start)
            os.posix_fadvise(self.fd, start, length, os.POSIX_FADV_WILLNEED)

    def read(self, out: Bytes, offset: int, *, drop: bool = True) -> None:
        """Fill a flat array of bytes; pages that came through the cache are dropped from it."""
        unaligned = self._go_through_cache if self._direct else None
        path = str(self.path)
        fill_from(self.fd, out, offset, path=path, remedy=DIRECTORY_ALONE, unaligned=unaligned)
        if drop and not self._direct:
            os.posix_fadvise(self.fd, offset, len(out), os.POSIX_FADV_DONTNEED)

    def remove(self) -> None:
        """Close and remove the file; does nothing the second time."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.path.unlink(missing_ok=True)

    def _append_direct(self, pieces: Sequence[memoryview]) -> None:
        total = sum(map(len, pieces))
        try:
            written = os.pwritev(self.fd, pieces, self._out.offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise refused(error, "cannot write", self.fd, str(self.path), total) from error
            self._go_through_cache()
            written = 0
        for piece in pieces if written < total else ():
            # A short write, or a file system that wants another alignment.
            kept = min(written, len(piece))
            written -= kept
            self._out.offset += kept
            write_all(self.fd, piece[kept:], self._out.offset, path=str(self.path))
            self._out.offset += len(piece) - kept
        self._out.offset += written

    def _go_through_cache(self) -> int:
        set_direct(self.fd, False)
        self._direct = False
        return self.fd


def spool_changed(path: Path) -> FormatError:
    """The error of scratch files that no longer hold what was written; the directory is named."""
    return FormatError(
        f"what the build wrote in {path} was changed by something else",
        path=str(path),
        remedy=DIRECTORY_ALONE,
    )


class Spool:
    """Blocks of records in a scratch file, and which range each belongs to.

    Args:
        path: Where the file goes.
        columns: 2 for (source, target), 3 with an edge id.
        paged: Whether every block takes whole pages.
    """

    def __init__(self, path: Path, *, columns: int = 2, paged: bool = False) -> None:
        self.columns, self.grain = columns, DIRECT_ALIGNMENT_BYTES if paged else 1
        self.file = ScratchFile(path, paged=paged)
        self._ranges, self._offsets, self._counts = array("q"), array("q"), array("q")
        self._wide = array("b")
        self._end = 0

    def record_bytes(self, wide: bool) -> int:
        """Bytes of a record."""
        return self.columns * (8 if wide else 4)

    def note(self, ranges: Ids, counts: Ids, wide: bool) -> None:
        """Record blocks in the order in which they are going to be appended."""
        sizes = -(-counts * self.record_bytes(wide) // self.grain) * self.grain
        ends = self._end + np.cumsum(sizes)
        self._ranges.frombytes(ranges.tobytes())
        self._counts.frombytes(counts.tobytes())
        self._offsets.frombytes((ends - sizes).tobytes())
        self._wide.frombytes(bytes([wide]) * len(ranges))
        self._end = int(ends[-1])

    def widen_ranges(self, shift: int, below: int) -> None:
        """Ranges below a number become 2**shift times as wide: older blocks belong to these."""
        ranges = np.array(self._ranges)
        self._ranges = array("q", np.where(ranges < below, ranges >> shift, ranges).tobytes())

    def blocks(self) -> Blocks:
        """The table as arrays, sorted by range and then by place in the file."""
        ranges = np.array(self._ranges, np.int64)
        order = np.argsort(ranges, kind="stable")
        return Blocks(
            self,
            ranges[order],
            np.array(self._offsets, np.int64)[order],
            np.array(self._counts, np.int64)[order],
            np.array(self._wide, np.bool_)[order],
        )
