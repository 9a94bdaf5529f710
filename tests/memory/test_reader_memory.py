"""Reading costs no more memory as a file grows, nor as what its format reads at a time grows."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from confined import PythonResult
from tf_examples import records

pytestmark = pytest.mark.memory
MIB = 1 << 20

# Reads the small file, then the large one: what the second adds to the highest peak so far.
SCRIPT = """
import os, re, sys
from pathlib import Path
from overspill.build.readers import csv_stream
from overspill.build.readers.edges import open_edges
from overspill.build.readers.source import SourceFile
from overspill.build.spec import EdgeSpec

# Arrow reads some 40 blocks ahead, or as many fewer as its reader keeps up with: at most 3 MiB.
csv_stream._BLOCK_BYTES = 1 << 16

def read(path):
    reader = open_edges(SourceFile.check(path), EdgeSpec())
    count = 0
    for chunk in reader.chunks(1 << 15):
        count += len(chunk.sources)
    if "feat" in sys.argv:
        for piece in reader.rows(("feat",)).pieces(1 << 20):
            count += len(piece)
    # Not getrusage: its peak is handed down from the process that started this one.
    status = Path("/proc/self/status").read_text()
    return count, int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) * 1024

small, before = read(sys.argv[1])
large, after = read(sys.argv[2])
print(small, large, after - before, flush=True)
# As the build's child ends: a thread of Arrow's that wants the interpreter while it goes aborts.
os._exit(0)
"""
LEAN = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_MMAP_THRESHOLD_": str(1 << 21)}


def pairs(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 2**62, (2, count))


def csv_gz(path: Path, times: int) -> None:
    """Members one after another, each of 250,000 lines."""
    lines = "\n".join(f"{s},{t}" for s, t in (pairs(250_000) % 10_000).T.tolist()) + "\n"
    path.write_bytes(gzip.compress(lines.encode(), 1) * times)


def parquet(path: Path, times: int) -> None:
    """One row group, among tiny ones and one of none."""
    source, target = pairs(800_000 * times)
    with pq.ParquetWriter(path, pa.schema({"src": pa.int64(), "dst": pa.int64()})) as writer:
        for part in (slice(0, 3), slice(3, 3), slice(3, None), slice(0, 0)):
            table = pa.table({"src": source[part], "dst": target[part]})
            writer.write_table(table, row_group_size=1 << 26)


def arrow(path: Path, times: int) -> None:
    """One batch, compressed, of more than the ids."""
    source, target = pairs(500_000 * times)
    feat = pa.FixedSizeListArray.from_arrays(np.zeros(len(source) * 4, np.float32), 4)
    table = pa.table({"src": source, "x": source, "dst": target, "feat": feat})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
        writer.write_table(table)


def npz(path: Path, times: int) -> None:
    edges = pairs(250_000 * times)
    np.savez_compressed(path, edge_index=edges, feat=np.zeros((edges.shape[1], 8), np.float32))


def tfrecord_gz(path: Path, times: int) -> None:
    block = records({"src": n, "dst": n * 7, "feat": [0.5] * 16} for n in range(4000))
    with gzip.open(path, "wb", 1) as file:
        for _ in itertools.repeat(None, 15 * times):
            file.write(block)


@pytest.mark.parametrize(
    ("name", "make", "more"),
    [
        ("e.csv.gz", csv_gz, []),
        ("e.parquet", parquet, []),
        ("e.arrow", arrow, ["feat"]),
        ("e.npz", npz, ["feat"]),
        ("e.tfrecord.gz", tfrecord_gz, ["feat"]),
    ],
)
def test_a_file_four_times_as_large(
    run_python: Callable[..., PythonResult],
    tmp_path: Path,
    name: str,
    make: Callable[[Path, int], None],
    more: list[str],
) -> None:
    paths = [tmp_path / f"small-{name}", tmp_path / f"large-{name}"]
    for path, times in zip(paths, (1, 4), strict=True):
        make(path, times)
    result = run_python(SCRIPT, arguments=[*paths, *more], env=LEAN).check()
    small, large, added = (int(word) for word in result.stdout.split())
    assert large >= 4 * small - 100
    assert added < 6 * MIB
    for path in paths:
        path.unlink()
