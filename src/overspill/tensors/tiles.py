"""Copy an array whose neighbours in memory are not neighbours in the copy, tile by tile.

Bottleneck: cache lines and pages. An element a page, as a transposed matrix is read row by row,
loads a line and a translation for each, and where a page's lines fall into few sets of the cache
they are gone before their other elements are asked for. Algorithm: a tile is read along the
source's own rows into a buffer that stays in the cache, and written from there along the copy's.

Limits: a tile that is few elements wide still reads few elements a line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_LINE_BYTES = 64
# Measured: a quarter of a page is enough of it, and more than 512 of them gain nothing.
_RUN_BYTES = 1024
_MOST_RUNS = 512
_TILE_BYTES = 128 << 10
# Below it, the calls take longer than the elements.
_FEWEST_ELEMENTS = 4096


def is_crossed(source: Array) -> bool:
    """Whether a row-major copy reads lines of the source that it soon needs again."""
    return _axes(_merged(source)) is not None


def copy_in_tiles(into: Array, source: Array) -> None:
    """Copy, by tiles where that saves memory traffic; 128 KiB of memory beyond both.

    Args:
        into: Row-major, of the source's shape and dtype.
        source: Any strides.
    """
    source = _merged(source)
    into = into.reshape(source.shape)
    axes = _axes(source)
    if axes is None:
        np.copyto(into, source)
        return
    reads = np.moveaxis(source, axes, (-2, -1))
    writes = np.moveaxis(into, axes, (-2, -1))
    # A line longer than its run: runs a power of two apart would share a few sets of the cache.
    run = min(reads.shape[-2], max(1, _RUN_BYTES // source.itemsize))
    pitch = run + _LINE_BYTES // source.itemsize
    runs = min(reads.shape[-1], _MOST_RUNS, _TILE_BYTES // (pitch * source.itemsize))
    tile = np.empty((runs, pitch), source.dtype)[:, :run].T
    for index in np.ndindex(reads.shape[:-2]):
        _copy_plane(writes[index], reads[index], tile)


def _copy_plane(into: Array, source: Array, tile: Array) -> None:
    height, width = tile.shape
    for top in range(0, source.shape[0], height):
        for left in range(0, source.shape[1], width):
            here = slice(top, top + height), slice(left, left + width)
            part = source[here]
            held = tile[: part.shape[0], : part.shape[1]]
            # By the transposes: numpy walks in the order of what it writes.
            np.copyto(held.T, part.T)
            np.copyto(into[here], held)


def _merged(source: Array) -> Array:
    """The same elements in the same order, with as few axes as a view can have."""
    if source.size == 0:
        return source
    sizes: list[int] = []
    below = 0
    for size, step in zip(source.shape, source.strides, strict=True):
        if size == 1:
            continue
        if sizes and below == step * size:
            sizes[-1] *= size
        else:
            sizes.append(size)
        below = step
    return source.reshape(sizes)


def _axes(source: Array) -> tuple[int, int] | None:
    """The axis along which the source's elements are neighbours, and the copy's; or None."""
    moving = [axis for axis in range(source.ndim) if source.strides[axis] != 0]
    if not moving or source.size == 0:
        return None
    near, last = min(moving, key=lambda axis: source.strides[axis]), source.ndim - 1
    if near == last or source.strides[last] < _LINE_BYTES:
        return None
    if source.shape[near] * source.shape[last] < _FEWEST_ELEMENTS:
        return None
    return near, last
