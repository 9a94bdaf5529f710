"""The files that the bench reads: rows that no disk can compress, and a random graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from overspill.errors import DiskRefusedError
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import FileRecord

_CHUNK_BYTES = 16 << 20
_CHUNK_EDGES = 1 << 21
_PATTERN_BYTES = 1 << 20


def pattern() -> bytes:
    """A mebibyte of noise."""
    return np.random.default_rng(0).bytes(_PATTERN_BYTES)


def write_rows(path: Path, nbytes: int) -> FileRecord:
    """Write an array file of uint8 (nbytes,), synced.

    Raises:
        DiskRefusedError: The disk could not reserve, write or sync the bytes.
    """
    chunk = np.random.default_rng(0).integers(0, 256, min(_CHUNK_BYTES, nbytes), dtype=np.uint8)
    with ArrayWriter(path, dtype="uint8", shape=(nbytes,)) as writer:
        for start in range(0, nbytes, chunk.size):
            writer.append(chunk[: nbytes - start])
    return writer.result


def write_edges(path: Path, edges: int, nodes: int) -> Path:
    """Write uniform edges as int64 (2, edges) to a .npy file.

    Raises:
        DiskRefusedError: The disk refused.
    """
    random = np.random.default_rng(1)
    header = {"descr": "<i8", "fortran_order": False, "shape": (2, edges)}
    try:
        with path.open("xb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for _row in range(2):
                for first in range(0, edges, _CHUNK_EDGES):
                    count = min(_CHUNK_EDGES, edges - first)
                    file.write(random.integers(0, nodes, count, dtype=np.int64).data)
    except OSError as error:
        raise DiskRefusedError(
            f"cannot write {path.name}: {error.strerror}",
            path=str(path),
            errno=error.errno,
            needed_bytes=16 * edges,
            remedy="free some space, or choose another disk with --dir",
        ) from error
    return path
