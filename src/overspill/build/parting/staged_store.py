"""Files of staged edges, read as one spool: in the order in which their edges were in the input.

Bottleneck: the device. Files are laid one behind another in one space of offsets, so that the
blocks of all of them are one selection. Memory: 25 bytes a block, 12 MB at a thousand million edges
of half-filled blocks. Limits: each file keeps a descriptor open.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from overspill.build.part_spec import StagedFile
from overspill.build.passes.blocks import Blocks
from overspill.build.remedies import STAGE_ANEW
from overspill.build.whole_reads import fill_from, unreadable
from overspill.errors import FormatError, StaleFileError
from overspill.linux.direct import DIRECT_ALIGNMENT_BYTES, set_direct
from overspill.storage.arrays import open_regular

Ids = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class StagedStore:
    """Staged files of one part, opened; a context manager. See `blocks.BlockStore`.

    Args:
        files: The files in the order of the input, and what they hold.
        shift: Range r holds the rows from ``r << shift`` on.
        edge_ids: Whether records have a third column.
        wide: Whether ids take 8 bytes.

    Raises:
        StaleFileError: A file is gone, or not as it was staged.
    """

    grain = DIRECT_ALIGNMENT_BYTES

    def __init__(
        self, files: Sequence[StagedFile], *, shift: int, edge_ids: bool, wide: bool
    ) -> None:
        self.columns = 3 if edge_ids else 2
        self._shift, self._wide, self._files = shift, wide, files
        self.file = _Files(files)

    def record_bytes(self, wide: bool) -> int:
        """Bytes of a record."""
        return self.columns * (8 if wide else 4)

    def blocks(self) -> Blocks:
        """All blocks, by range, and within a range in the order of the input."""
        tables = [self._table(number) for number in range(len(self._files))]
        table = np.concatenate([np.empty((0, 3), np.int64), *tables])
        order = np.argsort(table[:, 0], kind="stable")
        ranges, offsets, counts = (np.ascontiguousarray(table[order, n]) for n in range(3))
        found = Blocks(self, ranges, offsets, counts, np.full(len(order), self._wide))
        found.shift = self._shift
        return found

    def __enter__(self) -> Self:
        self.file.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def _table(self, number: int) -> Ids:
        file, start = self._files[number], self.file.starts[number]
        held = np.empty(3 * file.blocks, np.int64)
        self.file.read(held.view(np.uint8), start + file.table)
        table = held.reshape(-1, 3)
        ends = table[:, 1] + table[:, 2] * self.record_bytes(self._wide)
        if table.min(initial=0) < 0 or ends.max(initial=0) > file.table:
            raise FormatError(f"{file.path} is damaged", path=file.path, remedy=STAGE_ANEW)
        table[:, 1] += start
        return table


class _Files:
    def __init__(self, files: Sequence[StagedFile]) -> None:
        self._files = files
        sizes = np.array([file.nbytes for file in files], np.int64)
        self.starts = [int(start) for start in np.cumsum(sizes) - sizes]
        self._fds: list[tuple[int, int]] = []
        self._opened = ExitStack()

    def open(self) -> None:
        try:
            for file in self._files:
                fd = self._open(file)
                # A second description: what does not lie at whole pages goes through the cache.
                direct = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
                self._opened.callback(os.close, direct)
                self._fds.append((fd, direct if set_direct(direct, True) else fd))
        except OSError as error:
            self.close()
            if isinstance(error, StaleFileError):
                raise
            raise unreadable(file.path, error, remedy=STAGE_ANEW) from error

    def _open(self, file: StagedFile) -> int:
        fd = open_regular(Path(file.path))
        self._opened.callback(os.close, fd)
        size = os.fstat(fd).st_size
        if size != file.nbytes:
            raise StaleFileError(
                f"{file.path} has {size} bytes where {file.nbytes} were staged",
                path=file.path,
                remedy=STAGE_ANEW,
            )
        return fd

    def close(self) -> None:
        self._opened.close()
        self._fds = []

    def ask(self, offset: int, nbytes: int) -> None:
        """Nothing: reads go past the cache, several at a time."""

    def read(self, out: Bytes, offset: int) -> None:
        while len(out):
            number = bisect_right(self.starts, offset) - 1
            place = offset - self.starts[number]
            some = out[: self._files[number].nbytes - place]
            if not len(some):
                path = self._files[number].path
                raise StaleFileError(f"{path} was cut while in use", path=path, remedy=STAGE_ANEW)
            self._fill(number, some, place)
            out, offset = out[len(some) :], offset + len(some)

    def _fill(self, number: int, out: Bytes, place: int) -> None:
        path, (fd, direct) = self._files[number].path, self._fds[number]
        unaligned = None if direct == fd else lambda: fd
        fill_from(direct, out, place, path=path, remedy=STAGE_ANEW, unaligned=unaligned)
