"""The one place that maps files under tensors.

Spill files are mapped shared, by torch itself, so that the storage says its filename. Dataset
arrays are mapped privately, by `overspill.linux.mapping`: a stray write stays in its process and
never reaches the file. Either way the file's existence, identity and exact size are checked before
torch sees the path, because torch creates what is missing and grows what is too short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch

from overspill.errors import MappingError, StaleFileError
from overspill.linux.identity import FileIdentity, identify_file
from overspill.linux.mapping import Mapping, map_file
from overspill.linux.paths import printable
from overspill.tensors.layouts import tensor_over
from overspill.tensors.registry import MAPPED, MappedFile, mapping_owner, storage_owner
from overspill.tensors.torch_errors import told_by_torch


def wrap_mapping(
    mapping: Mapping, *, dtype: torch.dtype, shape: Sequence[int], payload_offset: int = 0
) -> torch.Tensor:
    """A tensor over a private mapping, which is disk-backed and pickles by path from then on.

    No byte is read or copied. The tensor keeps the mapping alive.

    Args:
        mapping: A private mapping of a whole file.
        dtype: The dtype of the elements.
        shape: The shape; contiguous.
        payload_offset: Where the first element lies in the file, in bytes; a multiple of the
            size of an element.

    Returns:
        A tensor of that shape. Writing to it changes this process's copy of the page only.

    Raises:
        MappingError: The file does not hold that many bytes, or the offset is not aligned.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if payload_offset + nbytes > mapping.nbytes or payload_offset % dtype.itemsize:
        raise MappingError(
            f"{mapping.path} cannot hold {dtype} {tuple(shape)} at byte {payload_offset}",
            path=mapping.path,
            needed_bytes=payload_offset + nbytes,
            available_bytes=mapping.nbytes,
            remedy="take the dtype, shape and place that the file was written with",
        )
    if nbytes == 0:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    remember_mapping(mapping)
    storage = mapping_storage(mapping, payload_offset, nbytes)
    return tensor_over(storage, dtype, shape)


def mapping_storage(mapping: Mapping, offset: int, nbytes: int) -> torch.UntypedStorage:
    """A storage over a span of a private mapping; it keeps the mapping alive."""
    span = np.asarray(mapping)[offset : offset + nbytes]
    return torch.from_numpy(span).untyped_storage()


def remember_mapping(mapping: Mapping) -> None:
    """Enter a private mapping among the mapped files of this process, once."""
    known = MAPPED.at(mapping.address)
    if known is not None and known.owner() is mapping:
        return
    MAPPED.enter(
        MappedFile(
            path=str(mapping.path),
            identity=mapping.identity,
            address=mapping.address,
            nbytes=mapping.nbytes,
            shared=False,
            ours=True,
            owner=mapping_owner(mapping),
        )
    )


def map_shared(
    path: str, *, nbytes: int, identity: FileIdentity | None = None
) -> torch.UntypedStorage:
    """Map a whole file shared and writable, or find it mapped already.

    Args:
        path: The file, absolute.
        nbytes: Its exact size.
        identity: Which file it must be; None takes the one that is there.

    Returns:
        A storage of `nbytes` bytes whose ``filename`` is `path`. Two calls for one file give
        the same mapping. No descriptor is kept.

    Raises:
        StaleFileError: The file is missing, of another size, or another file.
        MappingError: The system refused: no permission, no descriptors, no memory for the map; or
            it is no regular file, or its path is not UTF-8.
    """
    found = expect_file(path, nbytes=nbytes, identity=identity)
    known = MAPPED.of(found, shared=True) if nbytes else None
    if isinstance(known, torch.UntypedStorage):
        return known
    # A trial, dropped at once: where its own map fails, torch leaves the file open for good.
    map_file(path, nbytes=nbytes, shared=True, identity=found)
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu").untyped_storage()
    storage = _mapped_by_torch(path, nbytes)
    # Checked again: a file swapped in between must not be handed out under the old one's name.
    expect_file(path, nbytes=nbytes, identity=found)
    remember_storage(storage, path, found, ours=True)
    return storage


def remember_storage(
    storage: torch.UntypedStorage, path: str, identity: FileIdentity, *, ours: bool
) -> MappedFile:
    """Enter a storage that is a shared mapping of a whole file."""
    record = MappedFile(
        path=path,
        identity=identity,
        address=storage.data_ptr(),
        nbytes=storage.nbytes(),
        shared=True,
        ours=ours,
        owner=storage_owner(storage),
    )
    MAPPED.enter(record)
    return record


def expect_file(path: str, *, nbytes: int, identity: FileIdentity | None) -> FileIdentity:
    """Check that the file at `path` is there, is the one meant, and has its exact size.

    Returns:
        The identity of the file.

    Raises:
        StaleFileError: It is missing, was replaced, or has another size.
    """
    found = identify_file(path)
    if found.nbytes != nbytes:
        raise StaleFileError(
            f"{path} holds {found.nbytes} bytes where {nbytes} were expected",
            path=path,
            needed_bytes=nbytes,
            available_bytes=found.nbytes,
            remedy="the file was changed by somebody else; make the tensor again",
        )
    if identity is not None and found != identity:
        raise StaleFileError(
            f"{path} is not the file that was meant: it was replaced",
            path=path,
            remedy="the file was replaced under its name; make the tensor again",
        )
    return found


def _mapped_by_torch(path: str, nbytes: int) -> torch.UntypedStorage:
    try:
        mapped = torch.UntypedStorage.from_file(path, shared=True, nbytes=nbytes)
    except UnicodeEncodeError as error:
        raise MappingError(
            "torch maps no file whose path is not UTF-8",
            path=printable(path),
            remedy="move or rename it",
        ) from error
    except RuntimeError as error:
        told, number = told_by_torch(error)
        raise MappingError(
            f"cannot map {path}: {told}",
            path=path,
            errno=number,
            needed_bytes=nbytes,
            remedy="check permissions, the limit on descriptors (ulimit -n) and vm.max_map_count",
        ) from error
    return cast(torch.UntypedStorage, mapped)  # torch declares its base class
