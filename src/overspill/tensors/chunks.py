"""The row-major bytes of any strided tensor, piece by piece, in a bounded amount of memory.

Bottleneck: for contiguous tensors none, their own memory is handed out; else the strided read.
Algorithm: blocks of whole rows are copied into one staging buffer of a chunk, which every piece
reuses. Where the rows lie across the source's memory, the buffer is of `CROSSED_CHUNKS` chunks: the
more rows a block has, the more of each line and page is used that it reads. Limits: rows a little
over half the buffer leave the other half unused; rows as long as the buffer are read an element a
line.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from overspill.tensors.layouts import bytes_of
from overspill.tensors.tiles import copy_in_tiles, is_crossed

# write(2) of about 1 MiB ran fastest into reserved files, as measured.
CHUNK_BYTES = 1 << 20
CROSSED_CHUNKS = 4
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def byte_chunks(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield the bytes that ``tensor.contiguous()`` would hold, without making it.

    Args:
        tensor: A strided CPU tensor of a mappable dtype, not requiring grad.

    Yields:
        Flat views of at most `CHUNK_BYTES`, each valid until the next is asked for.
    """
    whole = contiguous_bytes(tensor)
    if whole is None:
        yield from _staged(copyable(tensor))
        return
    for start in range(0, len(whole), CHUNK_BYTES):
        yield whole[start : start + CHUNK_BYTES]


def contiguous_bytes(tensor: torch.Tensor) -> memoryview | None:
    """The tensor's own memory, where that holds just these bytes in order; else None.

    Args:
        tensor: As for `byte_chunks`.

    Returns:
        A flat view, valid as long as the tensor.
    """
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return bytes_of(tensor).numpy().data
    return None


def copyable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one that ``copy_`` can read: sub-byte dtypes have no copy of their own.

    Args:
        tensor: As for `byte_chunks`.

    Returns:
        A view of the same shape in an integer dtype of the same size, which moves the same bits;
        the tensor itself where there is none, or where a conjugation or negation is pending:
        arithmetic, which its own dtype must do.
    """
    same_size = _SAME_SIZE.get(tensor.element_size())
    if same_size is None or tensor.is_conj() or tensor.is_neg():
        return tensor
    return tensor.view(same_size)


def _staged(tensor: torch.Tensor) -> Iterator[memoryview]:
    size = tensor.element_size()
    chunks = CROSSED_CHUNKS if _by_numpy(tensor) and is_crossed(tensor.numpy()) else 1
    limit = max(1, chunks * CHUNK_BYTES // size)
    staging = torch.empty(min(limit, tensor.numel()), dtype=tensor.dtype, device="cpu")
    as_bytes = bytes_of(staging).numpy()
    piece = max(size, CHUNK_BYTES)
    for block in _blocks(tensor, limit):
        _copy(staging[: block.numel()].view(block.shape), block)
        for start in range(0, block.numel() * size, piece):
            yield as_bytes[start : min(start + piece, block.numel() * size)].data


def _copy(into: torch.Tensor, block: torch.Tensor) -> None:
    # By numpy where it can: torch splits even a copy of 1 MiB among threads that wait for each
    # other, which took six times as long on idle processors and sixty times on busy ones.
    if _by_numpy(block):
        copy_in_tiles(into.numpy(), block.numpy())
    else:
        into.copy_(block)


def _by_numpy(tensor: torch.Tensor) -> bool:
    return not tensor.is_conj() and not tensor.is_neg()


def _blocks(tensor: torch.Tensor, limit: int) -> Iterator[torch.Tensor]:
    """Consecutive parts of at most `limit` elements, in row-major order."""
    if tensor.numel() <= limit:
        yield tensor
        return
    row = tensor[0].numel()
    if row > limit:
        for index in range(tensor.shape[0]):
            yield from _blocks(tensor[index], limit)
        return
    rows = limit // row
    for start in range(0, tensor.shape[0], rows):
        yield tensor[start : start + rows]
