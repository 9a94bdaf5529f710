"""joblib over a tensor in a file: each process gets its path instead of its bytes.

python examples/joblib_rows.py [ROWS]
"""

from __future__ import annotations

import sys
import tempfile

import torch
from joblib import Parallel, delayed

import overspill as ov

PIECE = 1024


def norm_of(rows: torch.Tensor, start: int) -> float:
    return float(rows[start : start + PIECE].norm(dim=1).sum())


def main(count: int) -> None:
    with ov.spill_scope():
        rows = ov.allocate_disk_backed((count, 128), torch.float32, required=True)
        for start in range(0, count, PIECE):
            rows[start : start + PIECE] = 0.25
        starts = range(0, count, PIECE)
        norms = Parallel(n_jobs=2)(delayed(norm_of)(rows, start) for start in starts)
        print(f"{count} rows, mean norm {sum(norms) / count:.4f}")


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory(dir=".") as directory,
        ov.settings(spill_dir=directory, min_bytes="1MiB"),
    ):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 4 * PIECE)
