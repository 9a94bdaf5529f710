"""Append to a file with bounded dirty pages and bounded page cache.

Bottleneck: the device. A version 1 memory cgroup does not throttle dirty pages, so a plain writer
fills its group with pages that cannot be reclaimed. Algorithm: write in pieces, start the
write-back of a window as soon as it is full, wait for the window before it, then drop that one.
Limits: at most two windows are dirty or cached; one thread at a time.
"""

from __future__ import annotations

from overspill.linux.blocks import finish_writeback, start_writeback, write_all

# 1 MiB a write and 8 MiB a window: measured fastest for pwrite with sync_file_range.
_PIECE_BYTES = 1 << 20
_WINDOW_BYTES = 8 << 20


class WriteBehind:
    """A sequential writer over an open descriptor that it does not own.

    Args:
        fd: Descriptor open for writing, its blocks reserved by the caller.
        path: For error messages.
        offset: Where the first byte goes.
        window_bytes: Size of a window; less than the usual one where many files
            are written at a time.
    """

    def __init__(
        self, fd: int, *, path: str, offset: int = 0, window_bytes: int | None = None
    ) -> None:
        self._fd = fd
        self._path = path
        self._window_bytes = _WINDOW_BYTES if window_bytes is None else window_bytes
        self._window_start = offset
        self._behind: tuple[int, int] | None = None
        self.offset = offset

    def append(self, data: memoryview) -> None:
        """Write a flat view of bytes at the end; DiskRefusedError when the disk refuses."""
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            write_all(self._fd, piece, self.offset, path=self._path)
            self.offset += len(piece)
            if self.offset - self._window_start >= self._window_bytes:
                self._turn_window()

    def drain(self) -> None:
        """Wait until everything written so far is on its way to the device and out of the cache."""
        self._turn_window()
        self._turn_window()

    def _turn_window(self) -> None:
        nbytes = self.offset - self._window_start
        if nbytes:
            start_writeback(self._fd, self._window_start, nbytes)
        if self._behind is not None:
            finish_writeback(self._fd, *self._behind)
        self._behind = (self._window_start, nbytes) if nbytes else None
        self._window_start = self.offset
