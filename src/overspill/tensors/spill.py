"""Tensors in files of the run: spilled, allocated, loaded.

Bottleneck: the device. Algorithm: reserve every block, write, fsync, then map. Reserve before map,
because a mapping of a sparse file dies by SIGBUS, which no ``try`` catches, when the disk fills.
Above 16 MiB the bytes go past the page cache, which is slower than the device by itself: the first
use of a large tensor reads from the device. Smaller ones stay cached.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from overspill.errors import (
    DiskRefusedError,
    FormatError,
    MappingError,
    OverspillError,
    SpillDirError,
    StaleFileError,
    UnavailableError,
    UnsupportedTensorError,
)
from overspill.linux import libc
from overspill.linux.blocks import write_all
from overspill.linux.identity import identify_file
from overspill.linux.paths import missing_block_bytes, require_path, require_regular_file
from overspill.placement.spill import Headroom, Placement, Request, place_in_file
from overspill.settings import current_settings
from overspill.storage.direct_write import BUFFERED_BYTES, write_past_cache
from overspill.storage.spill_files import SpillFile
from overspill.storage.spill_records import TensorRecord, record_tensor
from overspill.storage.workspace import adopt_run_of, join_run
from overspill.tensors.backing import cpu_storage, file_behind
from overspill.tensors.chunks import byte_chunks, contiguous_bytes
from overspill.tensors.dtypes import dtype_name, is_mappable
from overspill.tensors.headroom import memory_headroom
from overspill.tensors.layouts import tensor_over
from overspill.tensors.lifetime import note_spill_file
from overspill.tensors.mapping import map_shared
from overspill.tensors.shapes import checked_nbytes, checked_shape
from overspill.units import format_bytes

logger = logging.getLogger("overspill")


def is_tensor_spilling_enabled() -> bool:
    """Whether a spill directory is in force, on a system that can map files.

    Raises:
        SettingsError: A setting in the environment cannot be understood.
    """
    return libc.SUPPORTED and current_settings().spill_dir is not None


def prepare_spill_dir() -> Path | None:
    """Start or join this run in the spill directory, and remove what dead runs left there.

    Idempotent; does nothing while spilling is off. Every process started from here on belongs to
    the run, and its files stay as long as one of them lives. Call it in the process that outlives
    the others: a producer may then exit before its consumer maps.

    Returns:
        The run's directory, or None while spilling is off.

    Raises:
        SpillDirError: The directory cannot be used: not writable, memory in disguise, not able to
            reserve blocks; with the remedy.
        DiskRefusedError: The disk is full.
        UnavailableError: A spill directory is set on a system other than 64-bit Linux.
    """
    spill_dir = current_settings().spill_dir
    if spill_dir is None:
        return None
    libc.require_linux("spilling tensors to disk")
    return join_run(spill_dir).directory


def spill_tensor_to_disk(tensor: torch.Tensor, *, required: bool = False) -> torch.Tensor | None:
    """Copy a tensor into a reserved file of the run, and return a tensor over that file.

    One pass, past the page cache above 16 MiB; peak memory beyond the source is 18 MiB of buffers,
    also for a tensor that is not contiguous. Thread-safe. A failure leaves no file and no reserved
    block.

    Args:
        tensor: The source; left as it is. Of one that requires grad the detached values.
        required: Raise instead of returning None.

    Returns:
        A contiguous tensor over the file with the same dtype, shape and values, written back to
        the device; the very same tensor where it is disk-backed already, spilling on or off. Of
        any other tensor None where spilling is off, or it is below the threshold, empty, not a
        strided CPU tensor or of a dtype that cannot be mapped, or where the disk or the directory
        refused (which is logged).

    Raises:
        UnsupportedTensorError: `tensor` is no tensor; or, when required, it is below the threshold
            or cannot live in a file.
        SpillDirError: When required: spilling is off, or the directory cannot be used.
        DiskRefusedError: When required: the disk could not reserve, write or sync the bytes.
        MappingError: When required: the file could not be mapped.
        StaleFileError: When required: somebody else removed or replaced the file meanwhile.
        UnavailableError: When required: the file system has no locks, or cannot be measured.
        SettingsError: A setting in the environment cannot be understood.
    """
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedTensorError(
            f"not a tensor: {type(tensor).__name__}", remedy="convert it: torch.as_tensor(...)"
        )
    obstacle = _obstacle(tensor)
    if obstacle is None and file_behind(tensor) is not None:
        return tensor
    # Asked for a size or a shape, some tensors that no file can hold raise.
    shape = tuple(tensor.shape) if obstacle is None else ()
    return _placed_in_file(
        Request(nbytes=checked_nbytes(shape, tensor.dtype), obstacle=obstacle),
        (shape, tensor.dtype),
        told=("spilled", f"{shape} {tensor.dtype}" if obstacle is None else "a tensor"),
        fill=lambda file: _write(tensor.detach().as_subclass(torch.Tensor), file),
        required=required,
    )


def allocate_disk_backed(
    shape: int | Sequence[int], dtype: torch.dtype, *, required: bool = False
) -> torch.Tensor | None:
    """Allocate a writable tensor over a file whose every block is reserved before it is mapped.

    Milliseconds whatever the size; memory is used only for the pages that are touched. Thread-safe.
    A failure leaves no file.

    Args:
        shape: The shape.
        dtype: The dtype.
        required: Raise instead of returning None.

    Returns:
        An uninitialised contiguous tensor. None where spilling is off, or it would be below the
        threshold, empty or of a dtype that cannot be mapped, or where the disk or the directory
        refused (which is logged).

    Raises:
        InputError: The shape is negative or overflows.
        UnsupportedTensorError: `dtype` is no dtype; the rest as in `spill_tensor_to_disk`.
        SpillDirError: As in `spill_tensor_to_disk`.
        DiskRefusedError: As in `spill_tensor_to_disk`.
        MappingError: As in `spill_tensor_to_disk`.
        StaleFileError: As in `spill_tensor_to_disk`.
        UnavailableError: As in `spill_tensor_to_disk`.
        SettingsError: As in `spill_tensor_to_disk`.
    """
    sizes = checked_shape(shape)
    nbytes = checked_nbytes(sizes, dtype)
    obstacle = None if is_mappable(dtype) else f"{dtype} (quantized)"
    return _placed_in_file(
        Request(nbytes=nbytes, obstacle=obstacle),
        (sizes, dtype),
        told=("allocated", f"{sizes} {dtype}"),
        fill=None,
        required=required,
    )


def load_spilled_tensor(
    path: str | os.PathLike[str], dtype: torch.dtype, shape: int | Sequence[int]
) -> torch.Tensor:
    """Map a raw file as a tensor: no byte is copied, and the file is never changed or created.

    A file of a run is held from here on: the process takes a share of the run's lease. A sparse
    file is refused: a write to a hole of it, once the disk is full, would end in SIGBUS, which
    nothing catches, and to fill the holes would change the file. Thread-safe; threads that load one
    file at the same moment may get a mapping each.

    Args:
        path: The file, writable, all its bytes written or reserved.
        dtype: The dtype of its elements.
        shape: The shape; its bytes must be exactly the file's.

    Returns:
        A contiguous tensor over the file; writes reach the file. Loading one file twice gives two
        tensors over one mapping.

    Raises:
        FormatError: The file's size is not exactly right (also a ValueError).
        InputError: The shape is negative or overflows; the path is none, or holds a NUL byte.
        StaleFileError: The file is missing, or its run is over (also an OSError).
        MappingError: The file cannot be written or mapped, is sparse, or is no regular file (also
            an OSError).
        UnsupportedTensorError: The dtype cannot be mapped.
    """
    sizes = checked_shape(shape)
    nbytes = checked_nbytes(sizes, dtype)
    if not is_mappable(dtype):
        raise UnsupportedTensorError(
            f"{dtype} cannot live in a mapped file",
            remedy="convert it to a dtype that an array file can hold",
        )
    place = os.path.abspath(require_path(path))  # noqa: PTH100 - links stay as they are
    require_regular_file(place)
    found = identify_file(place)
    if found.nbytes != nbytes:
        raise FormatError(
            f"{place} holds {found.nbytes} bytes; {sizes} of {dtype} takes exactly {nbytes}",
            path=place,
            needed_bytes=nbytes,
            available_bytes=found.nbytes,
            remedy="pass the dtype and shape that the file was written with",
        )
    _require_blocks(place, nbytes)
    adopt_run_of(place)
    return tensor_over(map_shared(place, nbytes=nbytes, identity=found), dtype, sizes)


def _require_blocks(path: str, nbytes: int) -> None:
    missing = missing_block_bytes(path)
    if missing:
        raise MappingError(
            f"{path} is sparse: the disk holds no block for {missing} of its {nbytes} bytes, and "
            "a write to them would kill the process once the disk is full",
            path=path,
            needed_bytes=nbytes,
            available_bytes=nbytes - missing,
            remedy=f"reserve the rest, which changes no byte: fallocate -l {nbytes} FILE",
        )


def _obstacle(tensor: torch.Tensor) -> str | None:
    """Why no file can hold this tensor, or None."""
    if not is_mappable(tensor.dtype):
        return f"{tensor.dtype} (quantized)"
    if hasattr(tensor, "__tensor_flatten__"):
        return f"a {type(tensor).__name__}, which wraps other tensors,"
    if cpu_storage(tensor) is None:
        return f"a {tensor.layout} tensor on {tensor.device}"
    return None


def _placed_in_file(
    request: Request,
    kind: tuple[tuple[int, ...], torch.dtype],
    *,
    told: tuple[str, str],
    fill: Callable[[SpillFile], None] | None,
    required: bool,
) -> torch.Tensor | None:
    done, what = told
    placement = _placement(request)
    if placement.home != "disk":
        logger.debug("not %s: %s: %s", done, what, placement.reason)
        if required:
            raise _unplaced(what, placement)
        return None
    try:
        storage = storage_in_new_file(request.nbytes, fill, holds=record_of(*kind))
    except (
        DiskRefusedError,
        MappingError,
        SpillDirError,
        StaleFileError,
        UnavailableError,
    ) as error:
        logger.error("could not place %s in a file: %s", what, str(error))
        if required:
            raise
        return None
    logger.info("%s %s (%s) in %s", done, what, format_bytes(request.nbytes), storage.filename)
    return tensor_over(storage, kind[1], kind[0])


def _placement(request: Request) -> Placement:
    settings = current_settings()
    enabled = libc.SUPPORTED and settings.spill_dir is not None
    # Measured only where it decides: reading the control groups takes longer than the answer.
    measured = enabled and settings.min_bytes is None and request.obstacle is None
    headroom = Headroom(
        memory_bytes=memory_headroom(settings) if measured else None,
        spill_dir=str(settings.spill_dir) if enabled else None,
        min_bytes=settings.min_bytes,
    )
    return place_in_file(request, headroom)


def _unplaced(what: str, placement: Placement) -> OverspillError:
    if not is_tensor_spilling_enabled():
        return SpillDirError(
            f"{what} cannot go to disk: {placement.reason}",
            remedy="set OVERSPILL_DIR, or use overspill.settings(spill_dir=...)",
        )
    return UnsupportedTensorError(
        f"{what} does not go to disk: {placement.reason}",
        remedy="keep it in memory, or lower OVERSPILL_MIN_BYTES if its size is what decided",
    )


def record_of(shape: tuple[int, ...], dtype: torch.dtype) -> TensorRecord:
    """What to write down about a file that will hold a tensor of this shape and dtype."""
    return TensorRecord(dtype_name(dtype), shape)


def storage_in_new_file(
    nbytes: int,
    fill: Callable[[SpillFile], None] | None = None,
    *,
    holds: TensorRecord | None = None,
) -> torch.UntypedStorage:
    """Reserve a file of the run, fill it, sync it and map it, whatever the threshold.

    Args:
        nbytes: Its size, at least 1. A spill directory must be in force.
        fill: Writes the bytes; None leaves them uninitialised.
        holds: What to write down about it, for whoever looks at the file.

    Returns:
        A storage over the file, which belongs to the spill scope that the caller is in.

    Raises:
        SpillDirError: The spill directory cannot be used.
        DiskRefusedError: The disk could not reserve, write or sync the bytes.
        MappingError: The file could not be mapped.
    """
    spill_dir = current_settings().spill_dir
    assert spill_dir is not None  # the placement saw to it
    with join_run(spill_dir).create_spill_file(nbytes) as file:
        if holds is not None:
            record_tensor(file.fd, holds)
        if fill is not None:
            fill(file)
            # Before the map: a write-back error must count as a refusal, not surface later.
            file.sync()
        identity = identify_file(file.fd)
        storage = map_shared(file.path, nbytes=nbytes, identity=identity)
        file.keep()
    note_spill_file(file.path, identity)
    return storage


def _write(tensor: torch.Tensor, file: SpillFile) -> None:
    if file.nbytes > BUFFERED_BYTES:
        whole = contiguous_bytes(tensor)
        chunks = byte_chunks(tensor) if whole is None else [whole]
        write_past_cache(chunks, file.fd, path=file.path, lasting=whole is not None)
        return
    done = 0
    for chunk in byte_chunks(tensor):
        write_all(file.fd, chunk, done, path=file.path)
        done += chunk.nbytes
