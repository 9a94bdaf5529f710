"""Run every benchmark: ``python -m benchmarks``."""

from __future__ import annotations

import sys

from benchmarks import csr, hand_over, import_time, release, spill
from benchmarks.command import main

EVERY = (import_time.opened, spill.opened, csr.opened, hand_over.opened, release.opened)

if __name__ == "__main__":
    sys.exit(main(EVERY))
