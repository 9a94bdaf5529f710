"""Parquet files whose nodes are names: edges, features that find their node, and a look-up.

python examples/text_ids.py [PEOPLE]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import overspill as ov


def write_files(directory: Path, people: int) -> None:
    random = np.random.default_rng(0)
    names = np.array([f"person-{number:06d}" for number in random.permutation(people)])
    edges = directory / "edges"
    edges.mkdir()
    for part in range(2):
        ends = {side: names[random.integers(0, people, 3 * people)] for side in ("from", "to")}
        pq.write_table(pa.table(ends), edges / f"part-{part}.parquet")
    known = names[: people // 2]  # of the others, nobody knows the age
    table = pa.table({"name": known, "age": random.integers(18, 90, known.size)})
    pq.write_table(table, directory / "ages.parquet")


def main(directory: Path, people: int) -> None:
    write_files(directory, people)
    graph = ov.build_dataset(
        directory / "dataset",
        edges=str(directory / "edges" / "*.parquet"),
        columns=("from", "to"),
        node_features={
            "age": ov.Columns("age", of=directory / "ages.parquet", key="name", fill=-1)
        },
        duplicates="drop",
        self_loops="drop",
        memory_limit="512MiB",
    )
    print(graph)
    node = int(graph.lookup(["person-000007"]))
    held = graph.topology()
    sources = held.indices[held.indptr[node] : held.indptr[node + 1]]
    print(f"{graph.node_ids()[node]} has {len(sources)} in-edges, from")
    for name, age in zip(graph.node_ids()[sources], graph.gather("age", sources), strict=True):
        print(f"  {name}, {int(age)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as directory:
        main(Path(directory), int(sys.argv[1]) if len(sys.argv) > 1 else 500)
