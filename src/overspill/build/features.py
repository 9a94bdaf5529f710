"""Node arrays: copied from .npy into array files, a slice at a time.

Bottleneck: the device. A thread reads one slice ahead; memory is three slices whatever the shape:
what is copied are elements, so a row may be larger than a slice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

from overspill.build.directory import BuildDirectory
from overspill.build.npy import NpyFile, read_npy_header
from overspill.build.pipeline import prefetched
from overspill.build.row_sources import NpyRows
from overspill.build.source import SourceFile
from overspill.errors import FormatError, InputError
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import STORED_DTYPES, FileRecord


def open_features(path: str) -> NpyFile:
    """Check that a .npy file can become a node array.

    Raises:
        InputError: It is damaged, has no first axis, or holds a type that cannot be stored.
    """
    file = read_npy_header(SourceFile.check(path))
    if file.type_name not in STORED_DTYPES:
        raise InputError(
            f"{path} holds {file.type_name}, which no array file can store",
            path=path,
            value=file.type_name,
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
    writer = ArrayWriter(target, dtype=file.type_name, shape=file.shape, record_path=path)
    elements = NpyRows(file, directory).elements(slice_bytes)
    with writer, closing(cast("Any", prefetched(elements))) as slices:
        for part in slices:
            writer.append(part)
            on_progress(part.nbytes)
    if writer.result is None:
        raise FormatError(f"{target} was not finished", path=str(target))
    return writer.result
