"""The columns of a recording: levels, true of one moment, and counters, which only grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

LEVELS = (
    "limit_bytes",
    "usage_bytes",
    "anon_bytes",
    "shmem_bytes",
    "clean_file_bytes",
    "dirty_bytes",
    "writeback_bytes",
    "process_anon_bytes",
    "process_file_bytes",
    "process_shmem_bytes",
)
COUNTERS = (
    "elapsed_ns",
    "read_bytes",
    "written_bytes",
    "loader_rows",
    "loader_batches",
    "loader_bytes",
    "loader_waited_ns",
    "kills",
)
FIELDS = LEVELS + COUNTERS
PLACES = {name: place for place, name in enumerate(FIELDS)}
UNKNOWN = -1  # what the system does not tell


def column(rows: Any, name: str) -> Any:
    """One field, of rows (n, fields) or of one row."""
    return rows[..., PLACES[name]]


def held(rows: Any) -> Any:
    """What the kernel cannot take back at once: all that is charged but clean page cache."""
    # The two are read one after the other, from figures that the kernel adds up at its leisure.
    return np.maximum(0, column(rows, "usage_bytes") - column(rows, "clean_file_bytes"))


def other(rows: Any) -> Any:
    """What is charged and of none of the kinds: the kernel's own memory, files locked in memory."""
    kinds = ("anon_bytes", "shmem_bytes", "clean_file_bytes", "dirty_bytes", "writeback_bytes")
    named = sum(column(rows, name) for name in kinds)
    return np.maximum(0, column(rows, "usage_bytes") - named)
