"""Node arrays: copied from .npy into array files, a slice at a time.

Bottleneck: the device. A thread reads one slice ahead; memory is three slices whatever the shape:
what is copied are elements, so a row may be larger than a slice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.npy import NpyFile, NpyReader, read_npy_header
from overspill.build.pipeline import prefetched
from overspill.build.reorder import Reorder, as_they_lie
from overspill.build.source import SourceFile
from overspill.build.spool import ScratchFile
from overspill.errors import FormatError, InputError
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import STORED_DTYPES, FileRecord


def open_features(path: str) -> NpyFile:
    """Check that a .npy file can become a node array.

    Raises:
        InputError: It is damaged, has no first axis, or holds a type that cannot be stored.
    """
    file = read_npy_header(SourceFile.check(path))
    if file.dtype.name not in STORED_DTYPES:
        raise InputError(
            f"{path} holds {file.dtype}, which no array file can store",
            path=path,
            value=str(file.dtype),
            remedy=f"convert it to one of {', '.join(STORED_DTYPES)}",
        )
    if not file.shape:
        raise InputError(f"{path} is a single number, not one row a node", path=path, value="()")
    return file


def copy_features(
    file: NpyFile,
    directory: BuildDirectory,
    *,
    path: str,
    slice_bytes: int,
    on_progress: Callable[[int], None],
) -> FileRecord:
    """Copy a .npy file into an array file, to C order and little-endian.

    Args:
        file: The checked source.
        directory: The build's directory.
        path: Where the array goes in it.
        slice_bytes: Size of a slice.
        on_progress: Called with the bytes done in each slice.
    """
    target = directory.file(path)
    directory.file(path + ".partial")
    writer = ArrayWriter(target, dtype=file.dtype.name, shape=file.shape, record_path=path)
    with writer, closing(cast("Any", prefetched(_slices(file, directory, slice_bytes)))) as slices:
        for rows in slices:
            writer.append(rows)
            on_progress(rows.nbytes)
    if writer.result is None:
        raise FormatError(f"{target} was not finished", path=str(target))
    return writer.result


def _slices(
    file: NpyFile, directory: BuildDirectory, slice_bytes: int
) -> Iterator[npt.NDArray[Any]]:
    """The elements in C order, flat and little-endian."""
    if not file.nbytes:
        return
    little = file.dtype.newbyteorder("<")
    with NpyReader(file) as reader:
        if file.fortran:
            reorder = Reorder(file.dtype, 3 * slice_bytes, _scratch_maker(directory))
            parts = reorder.slices(reader.elements, 0, file.shape)
        else:
            most = max(1, slice_bytes // file.dtype.itemsize)
            buffers = itertools.cycle([np.empty(most, file.dtype) for _ in range(3)])
            parts = as_they_lie(reader.elements, 0, math.prod(file.shape), buffers)
        with closing(cast("Any", parts)):
            for part in parts:
                yield part if file.dtype == little else part.byteswap(inplace=True).view(little)


def _scratch_maker(directory: BuildDirectory) -> Callable[[], ScratchFile]:
    numbers = itertools.count(1)
    return lambda: ScratchFile(directory.file(f"scratch/reorder-{next(numbers)}"))
