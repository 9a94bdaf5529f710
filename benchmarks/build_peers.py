"""What other libraries do to turn edges into rows by target, each as a process of its own.

    python -m benchmarks.build_peers NAME EDGES NODES OUT

EDGES is a (2, E) int64 .npy file, or a Parquet or CSV file of src and dst. Row pointers and sources
are written to OUT as .npy or, by databases, the sorted edges as Parquet. None is asked to sort
within a row. Memory is not limited, but DuckDB is told 1 GB: without it, it takes what there is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt


def _columns(edges: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if edges.endswith(".npy"):
        held = np.load(edges)
        return held[0], held[1]
    if edges.endswith(".csv"):
        from pyarrow import csv

        table = csv.read_csv(edges)
    else:
        from pyarrow import parquet

        table = parquet.read_table(edges)
    return table["src"].to_numpy(), table["dst"].to_numpy()


def _save(out: str, indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]) -> None:
    np.save(Path(out) / "indptr.npy", indptr)
    np.save(Path(out) / "indices.npy", indices)


def by_scipy(edges: str, nodes: int, out: str) -> None:
    """scipy.sparse: COO to CSC."""
    from scipy import sparse

    sources, targets = _columns(edges)
    ones = np.ones(len(sources), np.int8)
    held = sparse.coo_matrix((ones, (targets, sources)), shape=(nodes, nodes))
    rows = held.tocsr()  # which also sums duplicates, and sorts for it
    _save(out, rows.indptr.astype(np.int64), rows.indices)


def by_torch(edges: str, nodes: int, out: str) -> None:
    """torch, as PyTorch Geometric sorts: a stable sort by target, then a gather."""
    import torch

    sources, targets = (torch.from_numpy(ids) for ids in _columns(edges))
    held, order = torch.sort(targets, stable=True)
    indptr = torch._convert_indices_from_coo_to_csr(held, nodes)
    _save(out, indptr.numpy(), sources[order].numpy())


def by_duckdb(edges: str, nodes: int, out: str) -> None:
    """DuckDB: ORDER BY within 1 GiB, spilling beside its output."""
    import duckdb

    del nodes
    base = duckdb.connect(config={"memory_limit": "1GB", "temp_directory": f"{out}/spill"})
    if edges.endswith(".npy"):
        import pyarrow as pa

        held = np.load(edges, mmap_mode="r")
        base.register("edges", pa.table({"src": held[0], "dst": held[1]}))
        source = "edges"
    else:
        source = f"read_{Path(edges).suffix[1:]}('{edges}')"
    base.execute(
        f"COPY (SELECT src, dst FROM {source} ORDER BY dst) TO '{out}/sorted.parquet' "
        "(FORMAT parquet, COMPRESSION uncompressed)"
    )


def by_polars(edges: str, nodes: int, out: str) -> None:
    """polars: a lazy sort, sunk to Parquet."""
    import polars as pl

    del nodes
    if edges.endswith(".npy"):
        sources, targets = _columns(edges)
        frame = pl.LazyFrame({"src": sources, "dst": targets})
    else:
        frame = pl.scan_csv(edges) if edges.endswith(".csv") else pl.scan_parquet(edges)
    frame.sort("dst").sink_parquet(f"{out}/sorted.parquet", compression="uncompressed")


PEERS: dict[str, Callable[[str, int, str], None]] = {
    "scipy": by_scipy,
    "torch": by_torch,
    "duckdb": by_duckdb,
    "polars": by_polars,
}

if __name__ == "__main__":
    PEERS[sys.argv[1]](sys.argv[2], int(sys.argv[3]), sys.argv[4])
