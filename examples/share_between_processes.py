"""One tensor that eight processes fill, once in memory, whatever the size of /dev/shm.

python examples/share_between_processes.py [MIB]
"""

from __future__ import annotations

import sys
import tempfile

import torch
import torch.multiprocessing as mp

import overspill as ov

PROCESSES, WIDTH = 8, 256


def fill(rows: torch.Tensor, part: int) -> None:
    for start in range(part, len(rows), PROCESSES):
        rows[start] = float(start)


def main(mib: int) -> None:
    ov.prepare_spill_dir()  # the run, to which the processes started from here on belong
    with ov.spill_scope():  # its file goes at the end
        rows = ov.allocate_preshared((mib * (1 << 20) // 4 // WIDTH, WIDTH), torch.float32)
        print(ov.plan_placement(rows.shape, rows.dtype))
        mp.set_forkserver_preload(["torch", "overspill"])
        processes = mp.get_context("forkserver")
        workers = [processes.Process(target=fill, args=(rows, part)) for part in range(PROCESSES)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        right = torch.equal(rows[:, 0], torch.arange(len(rows), dtype=torch.float32))
        print(f"{rows.nbytes >> 20} MiB filled by {PROCESSES} processes, right: {right}")
        print(ov.residency(rows))


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory(dir=".") as directory,
        ov.settings(spill_dir=directory, min_bytes="1MiB"),
    ):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
