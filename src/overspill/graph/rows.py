"""Rows of an array read at random into a tensor."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError
from overspill.graph.paged import PagedArray
from overspill.storage.records import FileRecord
from overspill.tensors.dtypes import torch_dtype


def row_bytes(record: FileRecord) -> int:
    """Bytes of one row of an array."""
    return int(np.prod(record.shape[1:], dtype=np.int64)) * torch_dtype(record.dtype).itemsize


def gather_rows(
    array: PagedArray,
    record: FileRecord,
    ids: npt.NDArray[np.int64],
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Copy rows, asking for absent pages before they are touched.

    What is present is copied by as many threads as torch uses: one in a DataLoader's worker.

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
    shape = (ids.size, *record.shape[1:])
    dtype = torch_dtype(record.dtype)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device="cpu")
    _require_fit(out, shape, dtype)
    array.check_unchanged()
    array.take(ids, _bytes_of(out), threads=torch.get_num_threads())
    # A cut within a page leaves zeros in it, and no error.
    array.check_unchanged()
    return out


def _require_fit(out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if (
        tuple(out.shape) != shape
        or out.dtype != dtype
        or not out.is_contiguous()
        or out.device.type != "cpu"
        or out.requires_grad
    ):
        raise InputError(
            f"out is {out.dtype} {tuple(out.shape)} on {out.device} where a contiguous CPU tensor "
            f"{dtype} {shape} without a gradient is needed",
            remedy="leave out away, or allocate it like that",
        )


def _bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    # numpy lacks bfloat16 and float8, bytes it has.
    held: npt.NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
    return held
