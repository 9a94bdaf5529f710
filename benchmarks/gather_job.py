"""One way of reading rows at random, in a process of its own, for `gather`.

    python -m benchmarks.gather_job WAY FILE ROW_BYTES SECONDS SEED

The rows lie on pages of their own, so that no page is wanted twice, in random order. Prints rows,
seconds, the bytes that the device read and those of the pages wanted, as JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.graph.paged import PagedArray
from overspill.linux.device_reads import device_bytes_read
from overspill.storage.arrays import read_array_info
from overspill.storage.records import FileRecord

PAGE_BYTES = mmap.PAGESIZE
THREADS = 32
Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint8]
Read = Callable[[Ids, Rows], None]


def overspill(path: Path, row_bytes: int) -> Read:
    """The project's own."""
    info = read_array_info(path)
    record = FileRecord(path.name, info.dtype, info.shape, info.nbytes, "")
    array = PagedArray(path, record, stride_bytes=row_bytes, span_bytes=row_bytes)
    # Compiles, or loads from the cache, what is about to be timed.
    array.take(np.zeros(100, np.int64), np.empty((100, row_bytes), np.uint8))
    return array.take


def mapped(path: Path, row_bytes: int) -> Read:
    """Indexing a mapping, with the kernel's own read-ahead."""
    return _indexed(path, row_bytes, None)


def mapped_random(path: Path, row_bytes: int) -> Read:
    """Indexing a mapping that is advised RANDOM."""
    return _indexed(path, row_bytes, mmap.MADV_RANDOM)


def pread(path: Path, row_bytes: int) -> Read:
    """32 threads, a pread a row."""
    start = read_array_info(path).payload_offset

    def read(ids: Ids, out: Rows) -> None:
        def every(first: int) -> None:
            for at in range(first, len(ids), THREADS):
                os.preadv(fd, [out[at].data], start + int(ids[at]) * row_bytes)

        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(every, range(THREADS)))
        finally:
            os.close(fd)

    return read


# The largest batch that a way is asked for at once, by how soon it has to look at the clock.
WAYS: dict[str, tuple[Callable[[Path, int], Read], int]] = {
    "overspill": (overspill, 1 << 17),
    "mapped": (mapped, 1 << 6),
    "mapped_random": (mapped_random, 1 << 10),
    "pread": (pread, 1 << 14),
}


def measured(way: str, path: Path, row_bytes: int, seconds: float, seed: int) -> dict[str, Any]:
    """Read batch after batch until the time is over, or each page was read."""
    make, batch = WAYS[way]
    info = read_array_info(path)
    a_page = PAGE_BYTES // row_bytes
    pages = int(np.prod(info.shape)) // PAGE_BYTES
    random = np.random.default_rng(seed)
    ids = random.permutation(pages) * a_page + random.integers(0, a_page, pages)
    read = make(path, row_bytes)
    out = np.zeros((min(batch, pages), row_bytes), np.uint8)
    before, start = device_bytes_read() or 0, time.perf_counter()
    rows, elapsed = 0, 0.0
    while rows < pages and elapsed < seconds:
        some = ids[rows : rows + batch]
        read(some, out[: some.size])
        rows += some.size
        elapsed = time.perf_counter() - start
    return {
        "rows": rows,
        "seconds": elapsed,
        "read_bytes": (device_bytes_read() or 0) - before,
        "wanted_bytes": rows * PAGE_BYTES,
    }


def _indexed(path: Path, row_bytes: int, advice: int | None) -> Read:
    info = read_array_info(path)
    with path.open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if advice is not None:
        held.madvise(advice)
    rows = np.frombuffer(held, np.uint8)[info.payload_offset :].reshape(-1, row_bytes)

    def read(ids: Ids, out: Rows) -> None:
        np.take(rows, ids, axis=0, out=out, mode="clip")

    return read


if __name__ == "__main__":
    name, file, *numbers = sys.argv[1:]
    width, limit, number = int(numbers[0]), float(numbers[1]), int(numbers[2])
    print(json.dumps(measured(name, Path(file), width, limit, number)))
