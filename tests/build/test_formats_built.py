"""The same graph from every format; files of several formats as one graph."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from naive import build_here, require_naive
from tf_examples import records

EDGES = np.random.default_rng(21).integers(0, 50, (2, 700))


def table(edges: np.ndarray) -> pa.Table:
    return pa.table({"src": edges[0], "dst": edges[1].astype(np.uint16)})


def text(edges: np.ndarray, apart: str) -> bytes:
    return "".join(f"{s}{apart}{t}\n" for s, t in edges.T.tolist()).encode()


def examples(edges: np.ndarray) -> bytes:
    return records({"src": s, "dst": t} for s, t in edges.T.tolist())


WRITERS: dict[str, Callable[[Path, np.ndarray], object]] = {
    "e.npy": np.save,
    "e.npz": lambda path, edges: np.savez_compressed(path, edge_index=edges),
    "e.csv": lambda path, edges: path.write_bytes(b"src,dst\n" + text(edges, ",")),
    "e.tsv.gz": lambda path, edges: path.write_bytes(gzip.compress(text(edges, "\t"))),
    "e.txt.zst": lambda path, edges: path.write_bytes(
        pa.compress(text(edges, " "), codec="zstd", asbytes=True)
    ),
    "e.parquet": lambda path, edges: pq.write_table(table(edges), path, row_group_size=99),
    "e.feather": lambda path, edges: pyarrow.feather.write_feather(table(edges), str(path)),
    "e.tfrecord": lambda path, edges: path.write_bytes(examples(edges)),
}


@pytest.mark.parametrize("name", list(WRITERS))
def test_the_same_graph(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, EDGES)
    built = build_here(tmp_path / "out", edges=tmp_path / name, ids="dense")
    require_naive(built, *EDGES, 50)


def test_files_of_every_format_as_one_graph(tmp_path: Path) -> None:
    parts = np.array_split(EDGES, len(WRITERS), 1)
    for (name, write), part in zip(WRITERS.items(), parts, strict=True):
        write(tmp_path / name, part)
    paths = [tmp_path / name for name in WRITERS]
    require_naive(build_here(tmp_path / "out", edges=paths, ids="dense"), *EDGES, 50)
