"""A stock DataLoader whose batches need not fit /dev/shm: what does not goes through files.

python examples/small_shared_memory.py [MIB_A_SAMPLE]
"""

from __future__ import annotations

import sys
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset

import overspill as ov


class Images(Dataset[torch.Tensor]):
    def __init__(self, mib: int) -> None:
        self.mib = mib

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.mib, 512, 512), float(index))


def main(mib: int) -> None:
    loader = DataLoader(Images(mib), batch_size=4, num_workers=2)
    with ov.spill_batches():
        totals = [float(batch.mean()) for batch in loader]
    print(f"{len(totals)} batches of {4 * mib} MiB, mean {sum(totals) / len(totals)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as directory, ov.settings(spill_dir=directory):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
