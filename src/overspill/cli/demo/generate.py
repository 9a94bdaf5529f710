"""A power-law graph with planted classes, generated chunk by chunk onto disk.

Popularity: edge targets follow u**EXPONENT of a uniform u, which gives in-degrees a power-law tail;
a multiplicative shuffle spreads the popular nodes over the whole id range, as in real data, so that
their rows do not share pages. Classes: node v has class v % CLASSES; an edge keeps to the target's
class with probability HOMOPHILY. Features: a class's centroid plus noise too strong for one row to
decide, so that a model must average over neighbours to do well.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from overspill.linux.blocks import finish_writeback, reserve_blocks, write_all

CLASSES = 16
DIMENSIONS = 256
EDGES_PER_NODE = 5
HOMOPHILY = 0.8
EXPONENT = 1.7
_SIGNAL = 0.09
_VARIANTS = 512  # rows a class: few enough to stay in the processor's cache while they are copied
_SHUFFLE = 2_654_435_761  # odd and prime: coprime to every number of nodes below
_CHUNK_ROWS = 1 << 13
_CHUNK_EDGES = 1 << 17
ROW_BYTES = DIMENSIONS * 2

Report = Callable[[str, int, int, str], None]


def generate_graph(directory: Path, num_nodes: int, *, seed: int, report: Report) -> dict[str, str]:
    """Write edges.npy (2, E) int64, x.npy (N, 256) float16 and y.npy (N,) int64.

    Peak memory some 100 MiB whatever the number of nodes; dirty pages and cache are bounded by
    writing back behind itself.

    Args:
        directory: An existing directory.
        num_nodes: How many nodes; there are EDGES_PER_NODE times as many edges.
        seed: Of numpy's generator; the same seed gives the same bytes.
        report: Called with (phase, done, total, unit).

    Returns:
        The paths, by "edges", "x" and "y".

    Raises:
        DiskRefusedError: The disk has no room; what was written is the caller's to remove.
    """
    random = np.random.default_rng(seed)
    paths = {name: str(directory / f"{name}.npy") for name in ("edges", "x", "y")}
    _write_edges(paths["edges"], num_nodes, random, report)
    _write_features(paths["x"], num_nodes, random, report)
    labels = _NpyFile(paths["y"], "<i8", (num_nodes,))
    with labels:
        for start in range(0, num_nodes, _CHUNK_EDGES):
            stop = min(start + _CHUNK_EDGES, num_nodes)
            labels.append(np.arange(start, stop, dtype="<i8") % CLASSES)
    return paths


def _write_edges(path: str, num_nodes: int, random: np.random.Generator, report: Report) -> None:
    num_edges = num_nodes * EDGES_PER_NODE
    with _NpyFile(path, "<i8", (2, num_edges)) as file:
        for start in range(0, num_edges, _CHUNK_EDGES):
            count = min(_CHUNK_EDGES, num_edges - start)
            sources, targets = _edges(num_nodes, count, random)
            file.write_at(start * 8, sources)
            file.write_at((num_edges + start) * 8, targets)
            report("generate edges", start + count, num_edges, "edges")


def _edges(
    num_nodes: int, count: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    rank = (num_nodes * random.random(count) ** EXPONENT).astype(np.int64)
    targets = rank * _SHUFFLE % num_nodes
    sources = random.integers(0, num_nodes, count)
    alike = sources - sources % CLASSES + targets % CLASSES
    kept = (random.random(count) < HOMOPHILY) & (alike < num_nodes)
    return np.where(kept, alike, sources), targets


def _write_features(path: str, num_nodes: int, random: np.random.Generator, report: Report) -> None:
    centroids = random.standard_normal((CLASSES, 1, DIMENSIONS), dtype=np.float32) * _SIGNAL
    noise = random.standard_normal((CLASSES, _VARIANTS, DIMENSIONS), dtype=np.float32)
    rows = (centroids + noise).astype("<f2").reshape(-1, DIMENSIONS)
    with _NpyFile(path, "<f2", (num_nodes, DIMENSIONS)) as file:
        for start in range(0, num_nodes, _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, num_nodes)
            variant = random.integers(0, _VARIANTS, stop - start)
            file.append(rows[np.arange(start, stop) % CLASSES * _VARIANTS + variant])
            report("generate features", stop * ROW_BYTES, num_nodes * ROW_BYTES, "B")


class _NpyFile:
    """A .npy file reserved whole, written in pieces, synced behind the writer."""

    def __init__(self, path: str, dtype: str, shape: tuple[int, ...]) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._shape = shape

    def __enter__(self) -> _NpyFile:
        held = {"descr": self._dtype.str, "fortran_order": False, "shape": self._shape}
        self._file = Path(self._path).open("wb", buffering=0)
        np.lib.format.write_array_header_1_0(self._file, held)
        self._offset = self._payload = self._file.tell()
        nbytes = int(np.prod(self._shape)) * self._dtype.itemsize
        reserve_blocks(self._file.fileno(), self._payload + nbytes, path=self._path)
        return self

    def append(self, rows: np.ndarray) -> None:
        self._write(self._offset, rows)
        self._offset += rows.nbytes

    def write_at(self, position: int, rows: np.ndarray) -> None:
        self._write(self._payload + position, rows)

    def _write(self, offset: int, rows: np.ndarray) -> None:
        whole = np.ascontiguousarray(rows, self._dtype)
        descriptor = self._file.fileno()
        write_all(descriptor, whole.data, offset, path=self._path)
        finish_writeback(descriptor, offset, whole.nbytes)

    def __exit__(self, *exception: object) -> None:
        self._file.close()
