"""The process that `text_ids` times: ``python -m benchmarks.text_ids_job DIRECTORY COUNT``."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.ids.text_ids import store_distinct_strings
from overspill.build.pipeline import prefetched
from overspill.build.plan import BuildPlan, plan_build
from overspill.build.readers.edges import Strings
from overspill.linux.cgroups import available_memory_bytes
from overspill.linux.processes import process_memory

_WIDTHS = range(12, 21)
_ODD = np.uint64(0x5DEECE66D)
_CHUNKS_ALIVE = 3


def main(directory: Path, count: int) -> dict[str, float]:
    """Store so many distinct strings below a directory, leave nothing, return what it took."""
    with tempfile.TemporaryDirectory(prefix="overspill-benchmark-", dir=directory) as place:
        _store(Path(place) / "warm", 1000, _plan())  # compiles the kernels
        plan = _plan()
        started, processor = time.perf_counter(), time.process_time()
        making = _store(Path(place) / "out", count, plan)
        return {
            "seconds": time.perf_counter() - started,
            "processor_seconds": time.process_time() - processor - making,
        }


class MadeStrings:
    """Distinct strings of 12 to 20 hexadecimal digits.

    Attributes:
        seconds: Processor time that making them took so far.
    """

    def __init__(self, count: int, chunk: int) -> None:
        self._count, self._chunk = count, chunk
        self._digits = np.array([b"%04x" % number for number in range(1 << 16)]).view(np.uint32)
        self.seconds = 0.0

    def chunks(self) -> Iterator[Strings]:
        """Yield them all; a chunk is valid until the third after it."""
        buffers = [np.empty((self._chunk, 5), np.uint32) for _ in range(_CHUNKS_ALIVE)]
        for turn, first in enumerate(range(0, self._count, self._chunk)):
            before = time.thread_time()
            numbers = np.arange(first, min(self._count, first + self._chunk), dtype=np.uint64)
            held = self._write(numbers * _ODD, buffers[turn % _CHUNKS_ALIVE][: len(numbers)])
            width = _WIDTHS[turn % len(_WIDTHS)]
            data = np.ascontiguousarray(held.view(np.uint8)[:, :width]).reshape(-1)
            offsets = np.arange(0, len(data) + 1, width)
            self.seconds += time.thread_time() - before
            yield Strings(offsets, data)

    def _write(
        self, numbers: npt.NDArray[np.uint64], out: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.uint32]:
        # The first twelve digits tell the number: an odd factor loses nothing below 2**48.
        for place, shift in enumerate((0, 16, 32, 8, 24)):
            out[:, place] = self._digits[(numbers >> np.uint64(shift)) & np.uint64(0xFFFF)]
        return out


def _store(out: Path, count: int, plan: BuildPlan) -> float:
    """Returns the processor time that making the strings took."""
    made = MadeStrings(count, plan.chunk_edges)
    with BuildDirectory(out) as directory:
        records = store_distinct_strings(
            lambda: prefetched(made.chunks()), directory, prefix="nodes", plan=plan
        )
        if records.hashes.shape != (count,):
            raise RuntimeError(f"{records.hashes.shape} ids where {count} were made")
    return made.seconds


def _plan() -> BuildPlan:
    return plan_build(
        base_bytes=process_memory().anon_bytes,
        available_bytes=available_memory_bytes(),
        limit_bytes=None,
    )


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
