"""Rows of an array read at random into a tensor."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError
from overspill.graph.item_reader import ItemReader, Opened
from overspill.storage.records import FileRecord
from overspill.tensors.dtypes import torch_dtype
from overspill.tensors.layouts import bytes_of


def row_bytes(record: FileRecord) -> int:
    """Bytes of one row of an array."""
    return int(np.prod(record.shape[1:], dtype=np.int64)) * torch_dtype(record.dtype).itemsize


def open_rows(opened: Opened, record: FileRecord) -> ItemReader:
    """The random reader of an array of a dataset, its rows as items.

    Args:
        opened: Opens an array of the dataset.
        record: What the manifest says of it.

    Raises:
        StaleFileError: The file is not the one the record describes.
        MappingError: The system refused to map it.
    """
    size = row_bytes(record)
    return opened(record, size, size)


def gather_rows(
    array: ItemReader,
    record: FileRecord,
    ids: npt.NDArray[np.int64],
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Copy rows, asking for absent pages before they are touched.

    Args:
        array: The random reader of the array, its rows as items.
        record: What the manifest says of it.
        ids: int64 (rows,), within the array.
        out: Filled and returned; None allocates.

    Raises:
        InputError: `out` does not fit.
        StaleFileError: The file changed since it was opened, or while it was read.
        MappingError: The disk refused to read a page.
    """
    if out is None:
        shape = (ids.size, *record.shape[1:])
        out = torch.empty(shape, dtype=torch_dtype(record.dtype), device="cpu")
    filled = bytes_for(record, ids.size, out)
    array.check_unchanged()
    take_checked(array, ids, filled)
    return out


def take_checked(
    array: ItemReader,
    ids: npt.NDArray[np.int64],
    filled: npt.NDArray[np.uint8],
    *,
    places: npt.NDArray[np.int64] | None = None,
) -> None:
    """Take rows, and make sure afterwards that the file is still what it was.

    What is present is copied by as many threads as torch uses: one in a DataLoader's worker.
    """
    array.take(ids, filled, places=places, threads=torch.get_num_threads())
    # A cut within a page leaves zeros in it, and no error.
    array.check_unchanged()


def bytes_for(record: FileRecord, rows: int, out: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a tensor that rows of an array go into: uint8 (rows, bytes a row).

    Raises:
        InputError: It is no contiguous CPU tensor of the array's dtype and row shape, (rows, ...).
    """
    shape, dtype = (rows, *record.shape[1:]), torch_dtype(record.dtype)
    fits = tuple(out.shape) == shape and out.dtype == dtype and out.is_contiguous()
    if not fits or out.device.type != "cpu" or out.requires_grad:
        raise InputError(
            f"out is {out.dtype} {tuple(out.shape)} on {out.device} where a contiguous CPU tensor "
            f"{dtype} {shape} without a gradient is needed",
            remedy="leave out away, or allocate it like that",
        )
    filled: npt.NDArray[np.uint8] = bytes_of(out).numpy().reshape(rows, row_bytes(record))
    return filled
