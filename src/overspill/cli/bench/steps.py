"""The measurements: each limit of the machine beside what Overspill reaches, a moment apart.

Every step gives rates a second by name. What reads a file drops its cache first; what writes one
syncs it before the clock stops. Which of the two comes first changes from round to round, so that
neither always meets the device as the other left it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import torch

from overspill.build import describe_build, run_build
from overspill.cli.bench.figures import build_traffic
from overspill.cli.bench.files import pattern, write_edges, write_rows
from overspill.cli.bench.receiver import Receiver
from overspill.cli.bench.sizes import Sizes
from overspill.graph.paged import PagedArray
from overspill.linux.cache import drop_cache
from overspill.linux.random_reads import BLOCK_BYTES, RandomReads, read_randomly
from overspill.linux.sequential import read_sequentially, write_sequentially
from overspill.storage.arrays import map_array, read_array_info
from overspill.tensors import discard, spill_tensor_to_disk

ROW_BYTES = 512
_ROWS_A_PAGE = BLOCK_BYTES // ROW_BYTES
_PIECE_BYTES = 16 << 20
_SENT_BYTES = 16 << 20
_SEND_SECONDS = 0.2
_FEWEST_SENDS = 20
_FEWEST_ROWS, _MOST_ROWS = 64, 1 << 16
Rates = dict[str, float]
Rate = Callable[[], float]
Step = Callable[[Rates, bool], Rates]


class Bench:
    """The files, and the steps of a round over them; `prepare` comes first.

    Args:
        work: The directory; whoever made it removes it.
        sizes: What is moved.
        receiver: Another process, started.
    """

    def __init__(self, work: Path, sizes: Sizes, receiver: Receiver) -> None:
        self._work, self._sizes, self._receiver = work, sizes, receiver
        self._rows, self._edges = work / "rows.safetensors", work / "edges.npy"
        self._steps: tuple[Step, ...] = (
            self._writing,
            self._reading,
            self._random_reading,
            self._handing_over,
            self._building,
        )
        self._seed = 0
        self._reads_per_second = float(_FEWEST_ROWS)

    def write_files(self) -> None:
        """Write what will be read (DiskRefusedError where the disk refuses)."""
        self._record = write_rows(self._rows, self._sizes.read_bytes)
        self._start = read_array_info(self._rows).payload_offset
        write_edges(self._edges, self._sizes.edges, self._sizes.nodes)

    def prepare(self) -> RandomReads:
        """Compile the kernels, wait for the receiver, and look at the device's random reads."""
        self._source = torch.empty(self._sizes.write_bytes, dtype=torch.uint8).random_()
        self._build_once(write_edges(self._work / "few.npy", 1000, 100), 100)
        self._gather(_FEWEST_ROWS, seconds=0.0)
        sent = spill_tensor_to_disk(self._source[:_SENT_BYTES], required=True)
        assert sent is not None
        self._sent = sent
        self._receiver.send(sent)
        found = self._read_randomly(self._sizes.random_seconds / 4)
        self._reads_per_second = found.per_second
        return found

    def round(self, *, turned: bool, told: Callable[[int, int], None]) -> Rates:
        """Run every step once.

        Args:
            turned: Whether Overspill goes first.
            told: Called with how many steps are done, and how many there are.

        Returns:
            The rates a second, by the names of `figures.LIMITS` and `figures.MEASURES`.
        """
        found: Rates = {}
        for number, step in enumerate(self._steps):
            told(number, len(self._steps))
            found |= step(found, turned)
        told(len(self._steps), len(self._steps))
        return found

    def _writing(self, _found: Rates, turned: bool) -> Rates:
        size, path, noise = self._sizes.write_bytes, self._work / "written.bin", pattern()

        def limit() -> float:
            start = time.perf_counter()
            write_sequentially(path, size, noise)
            seconds = time.perf_counter() - start
            path.unlink()
            return size / seconds

        def spill() -> float:
            start = time.perf_counter()
            held = spill_tensor_to_disk(self._source, required=True)
            seconds = time.perf_counter() - start
            assert held is not None
            discard(held)
            return size / seconds

        return _both(("sequential_write", limit), ("spill", spill), turned)

    def _reading(self, _found: Rates, turned: bool) -> Rates:
        def limit() -> float:
            drop_cache(self._rows)
            start = time.perf_counter()
            nbytes = read_sequentially(self._rows)
            return nbytes / (time.perf_counter() - start)

        return _both(("sequential_read", limit), ("mapped_read", self._read_mapped), turned)

    def _read_mapped(self) -> float:
        drop_cache(self._rows)
        _mapping, payload = map_array(self._rows, self._record)
        start, done, seconds = time.perf_counter(), 0, 0.0
        while done < payload.nbytes and seconds < 2 * self._sizes.random_seconds:
            piece = payload[done : done + _PIECE_BYTES]
            piece[::BLOCK_BYTES].max()  # a byte of each page brings it
            done += piece.nbytes
            seconds = time.perf_counter() - start
        return done / seconds

    def _random_reading(self, _found: Rates, turned: bool) -> Rates:
        seconds = self._sizes.random_seconds

        def limit() -> float:
            self._reads_per_second = self._read_randomly(seconds).per_second
            return self._reads_per_second

        def gather() -> float:
            # So many at once that the clock is looked at a few times.
            batch = int(self._reads_per_second * seconds / 4)
            return self._gather(max(_FEWEST_ROWS, min(batch, _MOST_ROWS)), seconds=seconds)

        return _both(("random_reads", limit), ("gather", gather), turned)

    def _read_randomly(self, seconds: float) -> RandomReads:
        drop_cache(self._rows)
        self._seed += 1
        return read_randomly(self._rows, seconds=seconds, seed=self._seed, start=self._start)

    def _gather(self, batch: int, *, seconds: float) -> float:
        """Rows a second, a batch at least, each from a page that no cache holds."""
        rows, elapsed = 0, 0.0
        while not rows or elapsed < seconds:
            more, took = self._gather_cold(batch, seconds - elapsed)
            rows, elapsed = rows + more, elapsed + took
        return rows / elapsed

    def _gather_cold(self, batch: int, seconds: float) -> tuple[int, float]:
        """Rows and seconds of one pass, which takes each page once at most."""
        self._seed += 1
        random = np.random.default_rng(self._seed)
        pages = self._sizes.read_bytes // BLOCK_BYTES
        ids = random.permutation(pages) * _ROWS_A_PAGE
        ids += random.integers(0, _ROWS_A_PAGE, pages)
        out = np.zeros((min(batch, pages), ROW_BYTES), np.uint8)
        array = PagedArray(self._rows, self._record, stride_bytes=ROW_BYTES, span_bytes=ROW_BYTES)
        drop_cache(self._rows)  # not before: its header was read, and what follows it read ahead
        start, rows, elapsed = time.perf_counter(), 0, 0.0
        while rows < pages and (not rows or elapsed < seconds):
            some = ids[rows : rows + batch]
            array.take(some, out[: some.size])
            rows += some.size
            elapsed = time.perf_counter() - start
        return rows, elapsed

    def _handing_over(self, _found: Rates, turned: bool) -> Rates:
        payload = bytes(len(ForkingPickler.dumps(self._sent)))
        return _both(
            ("round_trips", lambda: self._sends(payload)),
            ("hand_over", lambda: self._sends(self._sent)),
            turned,
        )

    def _sends(self, message: object) -> float:
        start, count, seconds = time.perf_counter(), 0, 0.0
        while count < _FEWEST_SENDS or seconds < _SEND_SECONDS:
            self._receiver.send(message)
            count += 1
            seconds = time.perf_counter() - start
        return count / seconds

    def _building(self, found: Rates, _turned: bool) -> Rates:
        edges, nodes = self._sizes.edges, self._sizes.nodes
        limit = build_traffic(
            edges,
            nodes,
            read_bytes_per_second=found["sequential_read"],
            write_bytes_per_second=found["sequential_write"],
        )
        return {"build_traffic": limit, "build": edges / self._build_once(self._edges, nodes)}

    def _build_once(self, path: Path, nodes: int) -> float:
        drop_cache(path)
        with _removed(self._work / "built") as out:
            done = run_build(describe_build(out, edges=path, num_nodes=nodes))
        return float(done["seconds"])


@contextmanager
def _removed(place: Path) -> Iterator[Path]:
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _both(limit: tuple[str, Rate], ours: tuple[str, Rate], turned: bool) -> Rates:
    pair = (ours, limit) if turned else (limit, ours)
    return {name: measure() for name, measure in pair}
