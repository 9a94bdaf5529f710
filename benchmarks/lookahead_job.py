"""One way of reading the rows of a power-law trace, in a process of its own, for `lookahead`.

    python -m benchmarks.lookahead_job WAY DATASET PACK SECONDS

Prints rows, seconds, the bytes that the device read and the share of hot rows, as JSON. The trace
is the same for every way: batches of distinct ids, of Zipf popularity, the popular ones scattered
over the file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.graph.dataset import Dataset, open_dataset
from overspill.graph.reading.hot_rows import HotRows
from overspill.graph.reading.lookahead import ReadingBuffer, SharedReading
from overspill.graph.reading.pack_manifest import PackRecipe
from overspill.graph.reading.pack_writer import PackWriter
from overspill.graph.reading.packing import open_pack
from overspill.graph.reading.row_reader import RowReader
from overspill.linux.device_reads import device_bytes_read

KEY = ("node", "x")
LOOKAHEAD = 20
BATCH_DRAWS = 100_000
BATCHES = 40
EXPONENT = 1.0
BUFFER_BYTES = 400 << 20
HOT_BYTES = 256 << 20
_SCATTER = 2_654_435_761  # prime, and odd: a bijection over any number of rows it does not divide
Ids = npt.NDArray[np.int64]


def trace(rows: int, batches: int, *, seed: int = 0) -> Iterator[Ids]:
    """Batches of distinct ids; row of rank r is drawn with a chance of 1 / r."""
    random = np.random.default_rng(seed)
    for _ in range(batches):
        ranks = np.floor(float(rows) ** random.random(BATCH_DRAWS)).astype(np.int64) - 1
        found = np.unique(np.minimum(ranks, rows - 1) * _SCATTER % rows)
        yield random.permutation(found)


def recipe_of(dataset: Dataset) -> PackRecipe:
    """What the pack of the trace is made by."""
    return PackRecipe(
        dataset=dataset.manifest.identifier,
        seed=0,
        options={"draws": BATCH_DRAWS},
        arrays={KEY: "nodes"},
    )


def pack(dataset: Dataset, path: Path, _seconds: float) -> dict[str, Any]:
    """Pack the trace."""
    rows, start = 0, time.perf_counter()
    with PackWriter(path, dataset, recipe_of(dataset)) as writer:
        for ids in trace(_rows(dataset), BATCHES):
            writer.append({"nodes": ids})
            rows += ids.size
        writer.finish()
    return {"rows": rows, "seconds": time.perf_counter() - start}


def packed(dataset: Dataset, path: Path, seconds: float) -> dict[str, Any]:
    """Read a pack of the trace, batch after batch, with the ids."""
    opened = open_pack(path, recipe_of(dataset))
    assert opened is not None
    out, nodes = _out(dataset), torch.empty(BATCH_DRAWS, dtype=torch.int64)

    def read() -> Iterator[int]:
        for i in range(opened.batches):
            (size,) = opened.part_shape(i, "nodes")
            opened.read_part(i, "nodes", nodes[:size])
            opened.read_rows(i, KEY, out[:size])
            yield size

    with opened:
        return _measured(read(), seconds)


def gathered(dataset: Dataset, _path: Path, seconds: float, hot: bool = False) -> dict[str, Any]:
    """Gather one batch after the other."""
    reader, out = _reader(dataset, hot), _out(dataset)
    batches = list(trace(_rows(dataset), BATCHES))

    def read() -> Iterator[int]:
        for ids in batches:
            reader.gather(KEY, ids, out=out[: ids.size])
            yield ids.size

    return _measured(read(), seconds) | {"hot_rate": reader.counts.stats().hot_rate}


def ahead(dataset: Dataset, _path: Path, seconds: float, hot: bool = False) -> dict[str, Any]:
    """Read the rows of some batches together."""
    reader, out = _reader(dataset, hot), _out(dataset)
    buffer = ReadingBuffer(reader, KEY, BUFFER_BYTES)
    SharedReading(reader, KEY, [np.arange(9)], buffer=buffer).copy(0, out[:9])

    batches = list(trace(_rows(dataset), BATCHES))

    def read() -> Iterator[int]:
        for first in range(0, BATCHES, LOOKAHEAD):
            lists = batches[first : first + LOOKAHEAD]
            reading = SharedReading(reader, KEY, lists, buffer=buffer)
            for i, ids in enumerate(lists):
                reading.copy(i, out[: ids.size])
            yield sum(ids.size for ids in lists)

    return _measured(read(), seconds) | {"hot_rate": reader.counts.stats().hot_rate}


WAYS: dict[str, Callable[[Dataset, Path, float], dict[str, Any]]] = {
    "gather": gathered,
    "gather_hot": partial(gathered, hot=True),
    "lookahead": ahead,
    "lookahead_hot": partial(ahead, hot=True),
    "pack": pack,
    "packed": packed,
}


def _measured(batches: Iterator[int], seconds: float) -> dict[str, Any]:
    before, start = device_bytes_read() or 0, time.perf_counter()
    rows, elapsed = 0, 0.0
    for size in batches:
        rows += size
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            break
    return {
        "rows": rows,
        "seconds": elapsed,
        "read_bytes": (device_bytes_read() or 0) - before,
    }


def _rows(dataset: Dataset) -> int:
    return dataset.node_record().count


def _out(dataset: Dataset) -> torch.Tensor:
    record = dataset.node_record().arrays["x"]
    return torch.zeros((BATCH_DRAWS, *record.shape[1:]), dtype=torch.uint8)


def _reader(dataset: Dataset, hot: bool) -> RowReader:
    if not hot:
        reader = RowReader(dataset)
    else:
        # Counted over another epoch of the same popularity.
        counts = np.zeros(_rows(dataset), np.int32)
        for ids in trace(_rows(dataset), BATCHES, seed=1):
            counts[ids] += 1
        held = HotRows.chosen_by_counts(dataset, [KEY], {"node": counts}, HOT_BYTES)
        reader = RowReader(dataset, held)
    # Compiles, or loads from the cache, what is about to be timed.
    reader.gather(KEY, range(100), out=_out(dataset)[:100])
    return reader


if __name__ == "__main__":
    way, at, pack_at, limit = sys.argv[1:]
    print(json.dumps(WAYS[way](open_dataset(at), Path(pack_at), float(limit))))
