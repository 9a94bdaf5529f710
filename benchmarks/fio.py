"""The rate of random reads that a device reaches, as fio measures it past the page cache."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from overspill.errors import UnavailableError

NAME = "fio"
REMEDY = "install it (apt-get install fio)"
DEPTH = 256
_MOST_RUNS = 20
# So much that was written is worth one more run: little settles soon.
_RUN_BYTES = 256 << 20
_STEADY = 0.1


def is_installed() -> bool:
    """Whether fio is there."""
    return shutil.which(NAME) is not None


def random_read_rate(path: Path, *, seconds: int = 4, block_bytes: int = 4096) -> float:
    """Random direct reads a second of one file, at depth 256.

    Each block is read once at most, and other ones in each run.

    Args:
        path: The file; it is not changed.
        seconds: How long to read.
        block_bytes: Bytes a read.

    Returns:
        Reads a second.

    Raises:
        UnavailableError: fio is not installed, or could not read.
    """
    if not is_installed():
        raise UnavailableError("fio is not installed", remedy=REMEDY)
    options = {
        "name": "random-reads",
        "filename": path,
        "rw": "randread",
        "bs": block_bytes,
        "iodepth": DEPTH,
        "ioengine": "libaio",
        "direct": 1,
        "randrepeat": 0,
        "time_based": 1,
        "runtime": seconds,
        "output-format": "json",
    }
    argv = [NAME, "--readonly", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"fio failed: {done.stderr.strip() or done.stdout.strip()}")
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])


def settled_rate(path: Path) -> float:
    """Read until two runs in a row differ by less than a tenth: after writing, disks are slow.

    Returns:
        The last rate, steady or not: it gives up after a run of two seconds for each 256 MiB of
        the file, and after twenty.
    """
    runs = min(max(path.stat().st_size // _RUN_BYTES, 1), _MOST_RUNS)
    before = random_read_rate(path, seconds=2)
    for _ in range(runs):
        rate = random_read_rate(path, seconds=2)
        if abs(rate / before - 1) < _STEADY:
            break
        before = rate
    return rate
