"""Text ids made dense out of core: 50 million distinct ones in a memory group of 1 GiB.

The ids are made chunk by chunk in a thread, as a reader would, and never stored as input. What is
timed is a process of its own, from the first chunk to the published files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, Figures
from benchmarks.place import require_disk
from overspill.linux.confine import MemoryGroup, PeakSampler
from overspill.linux.sequential import read_sequentially, write_sequentially

DEFAULT_IDS = 50_000_000
MEAN_BYTES = 16
LIMIT_BYTES = 1 << 30
OURS, LIMIT = "overspill", "the same bytes past the page cache"
_MICROSECONDS = "microseconds an id"
_PEAK = "peak anonymous MiB"
# Of each id on disk at one moment: two of runs, merge and result, with 12 to 16 bytes beside it.
_DISK_BYTES = 2 * (MEAN_BYTES + 16)
# Beside the text of an id in a run: where it ends, and its number.
_NUMBERS_BYTES = 12
_MOST_PEAK_MIB = 400
_MOST_MICROSECONDS = 1 / 3


@dataclass
class _Run:
    """What the process that did the work told, and what its group held."""

    count: int
    seconds: float
    processor_seconds: float
    peak_bytes: int


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """The case.

    Args:
        directory: On the disk to measure.
        nbytes: Bytes of all ids together, 16 each on average; 50 million ids by default.

    Yields:
        The case.
    """
    count = DEFAULT_IDS if nbytes is None else max(1, nbytes // MEAN_BYTES)
    require_disk(directory, count * _DISK_BYTES)
    ours = Contender(
        name=OURS,
        act=lambda _: _run(directory, count),
        after=_figures,
        nbytes=count * MEAN_BYTES,
        note="the clock runs from the start of its process on; the figures from the first chunk on",
    )
    limit = Contender(
        name=LIMIT,
        act=lambda _: _moved(directory, count * (MEAN_BYTES + _NUMBERS_BYTES)),
        nbytes=count * MEAN_BYTES,
        note="sorted runs written and read, and what comes of them written, past the page cache",
    )
    yield [
        Case(
            name=f"{count} text ids in a group of {LIMIT_BYTES >> 20} MiB",
            contenders=[ours, limit],
            baseline=OURS,
            limit=LIMIT,
            targets=[
                Bound(of=OURS, figure=_MICROSECONDS, at_most=_MOST_MICROSECONDS),
                Bound(of=OURS, figure=_PEAK, at_most=_MOST_PEAK_MIB),
            ],
        )
    ]


def _run(directory: Path, count: int) -> _Run:
    job = [sys.executable, "-m", "benchmarks.text_ids_job", str(directory), str(count)]
    with (
        MemoryGroup.create(LIMIT_BYTES, name_hint="overspill-benchmark") as group,
        PeakSampler(group, interval_s=0.02) as sampler,
    ):
        done = subprocess.run(
            group.command(job),
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return _Run(count, **json.loads(done.stdout), peak_bytes=sampler.peaks.anon_bytes)


def _moved(directory: Path, nbytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="overspill-benchmark-", dir=directory) as place:
        for name in ("runs", "result"):
            write_sequentially(Path(place) / name, nbytes, bytes(range(256)))
        read_sequentially(Path(place) / "runs")


def _figures(run: _Run | None) -> Figures:
    if run is None:
        return {}
    return {
        _MICROSECONDS: run.seconds * 1e6 / run.count,
        "of a processor, without making them": run.processor_seconds * 1e6 / run.count,
        "million ids a second": run.count / run.seconds / 1e6,
        _PEAK: run.peak_bytes / (1 << 20),
    }


if __name__ == "__main__":
    sys.exit(main([opened]))
