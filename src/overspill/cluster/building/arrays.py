"""Node arrays: the rows of one part, of a .npy file here or on another machine, as an array file.

Bottleneck: the device, or the network. Ranges are read as slices; of scattered nodes the whole file
is read and what belongs to others is passed over, on the machine that has it. Memory: a few pieces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.finite import FiniteCheck
from overspill.build.part_spec import ReadyArray
from overspill.build.parting.split_spec import OwnersSpec, Window
from overspill.build.parting.stage_split import checked_source
from overspill.build.readers.features import open_features
from overspill.build.readers.npy import NpyFile, NpyReader
from overspill.build.readers.reorder import as_they_lie
from overspill.build.spec import NonFinite
from overspill.kernels.route import hash_nodes
from overspill.storage.arrays import ArrayWriter, partial_path
from overspill.storage.records import numpy_view_dtype

Rows = npt.NDArray[Any]
_PIECE_BYTES = 4 << 20
_BUFFERS = 4


def part_rows(
    window: Window, name: str, owners: OwnersSpec, part: int, non_finite: NonFinite
) -> Iterator[Rows]:
    """Yield the elements of a part's rows, flat, in order; each valid until the second after it.

    Raises:
        InputError: The file was changed, or a number is not finite and that is refused.
    """
    checked_source(window)
    file = open_features(window.path, name)
    check = FiniteCheck(name, file.type_name, file.shape[1:], non_finite)
    little, span = numpy_view_dtype(file.type_name), math.prod(file.shape[1:])
    pieces = _all_of(file) if owners.bounds is None else _range_of(file, owners.bounds, part)
    for first, piece in pieces:
        held = piece if piece.dtype == little else piece.astype(little)
        first_row = first // max(1, span)
        check.look(held, path=window.path, first_row=first_row, first_item=first % max(1, span))
        if owners.bounds is None:
            held = _own(held, span, first_row, owners.num_parts, part)
        yield held


def _range_of(file: NpyFile, bounds: tuple[int, ...], part: int) -> Iterator[tuple[int, Rows]]:
    """Elements of consecutive rows, however large a row is."""
    span = math.prod(file.shape[1:])
    first, last = bounds[part] * span, bounds[part + 1] * span
    most = max(1, min(_PIECE_BYTES // file.dtype.itemsize, last - first))
    buffers = itertools.cycle([np.empty(most, file.dtype) for _ in range(_BUFFERS)])
    with NpyReader(file) as reader:
        for piece in as_they_lie(reader.elements, first, last - first, buffers):
            yield first, piece
            first += len(piece)


def _all_of(file: NpyFile) -> Iterator[tuple[int, Rows]]:
    """Elements of whole rows."""
    span = math.prod(file.shape[1:])
    rows = max(1, _PIECE_BYTES // max(1, span * file.dtype.itemsize))
    total, first = file.shape[0] * span, 0
    buffers = itertools.cycle(
        [np.empty(min(rows * span, total), file.dtype) for _ in range(_BUFFERS)]
    )
    with NpyReader(file) as reader:
        for piece in as_they_lie(reader.elements, 0, total, buffers):
            yield first, piece
            first += len(piece)


def _own(elements: Rows, span: int, first_row: int, num_parts: int, part: int) -> Rows:
    """Of whole rows, those that a part of scattered nodes has."""
    if not span:
        return elements
    rows = elements.reshape(-1, span)
    parts = np.empty(len(rows), np.uint32)
    hash_nodes(first_row, num_parts, parts)
    return np.compress(parts == part, rows, axis=0).reshape(-1)


def ready_array(
    path: Path, record_path: str, dtype: str, shape: tuple[int, ...], pieces: Iterator[Rows]
) -> ReadyArray:
    """Write an array file of flat pieces, durable when this returns.

    Raises:
        DiskRefusedError: The disk refused; nothing is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in (path, partial_path(path)):
        old.unlink(missing_ok=True)  # of an attempt that was killed
    with ArrayWriter(path, dtype=dtype, shape=shape, record_path=record_path) as writer:
        for piece in pieces:
            writer.append(np.ascontiguousarray(piece))
    return ReadyArray(path=str(path), record=writer.result)
