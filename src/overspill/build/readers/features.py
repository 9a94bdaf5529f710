"""Which .npy files can become arrays of a dataset."""

from __future__ import annotations

from overspill.build.readers.npy import NpyFile, read_npy_header
from overspill.build.readers.source import SourceFile
from overspill.errors import InputError
from overspill.storage.records import STORED_DTYPES


def open_features(path: str, name: str) -> NpyFile:
    """Check that a .npy file can become the array of that name.

    Raises:
        InputError: It is damaged, has no first axis, or holds a type that cannot be stored.
    """
    file = read_npy_header(SourceFile.check(path))
    if file.type_name not in STORED_DTYPES:
        raise InputError(
            f"{path} holds {file.type_name}, which no array file can store",
            path=path,
            column=name,
            value=str(file.dtype),
            remedy=f"convert it to one of {', '.join(STORED_DTYPES)}",
        )
    if not file.shape:
        raise InputError(
            f"{path} is a single number, not rows",
            path=path,
            column=name,
            value="()",
            remedy="give an array whose first axis counts the nodes, or the edges",
        )
    return file
