"""Play for as long as is asked: exit status 0, or 1 where anything was violated."""

from __future__ import annotations

import argparse
import gc
import secrets
import signal
import sys

import torch

from overspill.units import format_bytes
from soak.inputs import RECIPES
from soak.rounds import Extent, Soak
from soak.stage import DISK_BYTES, MEMORY_BYTES, SHM_BYTES, Stage


def main(words: list[str] | None = None) -> int:
    """Parse the words, play, and print the summary."""
    options = argparse.ArgumentParser(prog="soak", description=__doc__)
    options.add_argument(
        "--minutes", type=float, default=60, help="after the set-up, of a minute or so"
    )
    options.add_argument("--rounds", type=int, help="the most; without, as the time allows")
    options.add_argument("--seed", type=int, help="that of an earlier run repeats its draws")
    given = options.parse_args(words)
    seed = secrets.randbits(32) if given.seed is None else given.seed
    sizes = map(format_bytes, (MEMORY_BYTES, DISK_BYTES, SHM_BYTES))
    print("seed {}; memory {}, disk {}, /dev/shm {}".format(seed, *sizes), flush=True)
    # A forked process must not wait for threads that it has not got.
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()
    # The stage is taken down, and who plays on it ended, as after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with Stage.make() as stage:
        counts = Soak(stage, seed, RECIPES).play(Extent(60 * given.minutes, given.rounds))
    print(f"seed {seed}\n{counts.summary()}")
    return 1 if counts.violations else 0


if __name__ == "__main__":
    sys.exit(main())
