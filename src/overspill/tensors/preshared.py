"""Tensors made in their final home, so that sharing them later copies nothing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch

from overspill.errors import (
    DiskRefusedError,
    MappingError,
    NoRoomError,
    SpillDirError,
    StaleFileError,
    UnsupportedTensorError,
)
from overspill.placement.final_home import REMEDY, Demand, Rooms, best_offer, place_finally
from overspill.placement.spill import Home, Placement
from overspill.storage.spill_records import TensorRecord
from overspill.tensors.dtypes import is_mappable
from overspill.tensors.layouts import tensor_over
from overspill.tensors.rooms import measured_rooms
from overspill.tensors.shapes import checked_nbytes, checked_shape
from overspill.tensors.shared_memory import SHARED_MEMORY, shared_storage
from overspill.tensors.spill import (
    is_tensor_spilling_enabled,
    record_of,
    storage_in_new_file,
)
from overspill.units import format_bytes

logger = logging.getLogger("overspill")


def allocate_preshared(
    shape: int | Sequence[int], dtype: torch.dtype, *, random_access: bool = False
) -> torch.Tensor:
    """Allocate a tensor where it can stay: sharing it later copies nothing.

    Written in order, the disk comes first and /dev/shm second, which must hold the bytes plus its
    reserve, as the memory headroom must hold the bytes. Written at random, /dev/shm comes first,
    if it and the headroom hold the bytes plus their reserves, and the disk second, with a warning.
    Below the spill threshold a plain tensor does, which ``share_memory_()`` copies; but one of
    1 MiB or more, written in order, that /dev/shm could not hold then goes to the disk, if it can.

    Costs milliseconds on disk; in /dev/shm the memory is taken and cleared at once, so that neither
    SIGBUS nor a kill can come later. Thread-safe; two processes that ask at one moment for the last
    memory of a control group are not told of each other.

    Args:
        shape: The shape.
        dtype: The dtype.
        random_access: Whether it will be written in no particular order, as a scatter writes.

    Returns:
        An uninitialised contiguous tensor.

    Raises:
        NoRoomError: No home is safe; names what stands against each, and both remedies.
        InputError: The shape is negative or overflows.
        UnsupportedTensorError: No dtype, or a quantized one.
    """
    sizes, nbytes = _checked(shape, dtype)
    demand = Demand(nbytes=nbytes, random_access=random_access)
    what, holds = f"{sizes} {dtype}", record_of(sizes, dtype)
    storage, _home = storage_in_final_home(demand, what, holds=holds)
    return tensor_over(storage, dtype, sizes)


def plan_placement(
    shape: int | Sequence[int], dtype: torch.dtype, *, random_access: bool = False
) -> Placement:
    """What `allocate_preshared` would choose now, and why; makes nothing.

    Args:
        shape: The shape.
        dtype: The dtype.
        random_access: Whether it will be written in no particular order.

    Returns:
        ``home`` is "memory" (a plain tensor), "shm", "disk", or "none" where `allocate_preshared`
        would raise; ``reason`` has the numbers that decided.

    Raises:
        InputError: The shape is negative or overflows.
        UnsupportedTensorError: No dtype, or a quantized one.
    """
    _sizes, nbytes = _checked(shape, dtype)
    return place_finally(Demand(nbytes=nbytes, random_access=random_access), measured_rooms())


def storage_in_final_home(
    demand: Demand, what: str, rooms: Rooms | None = None, *, holds: TensorRecord | None = None
) -> tuple[torch.UntypedStorage, Home]:
    """A storage in the first home that is safe and does not refuse.

    Args:
        demand: What is to be placed.
        what: What to call it in messages.
        rooms: What there is; None measures it now.
        holds: What to write down about it if it goes to a file.

    Returns:
        The storage, and the home that it is in.

    Raises:
        NoRoomError: No home is safe, or each refused.
    """
    rooms = measured_rooms() if rooms is None else rooms
    log_passed_over(demand, place_finally(demand, rooms), what)
    while True:
        placement = place_finally(demand, rooms)
        if placement.home == "none":
            raise no_home(demand, rooms, placement, what)
        try:
            storage = _made(placement, demand, holds)
        except NoRoomError as error:  # it has vanished since it was measured
            logger.error("could not place %s in /dev/shm: %s", what, str(error))
            rooms = replace(rooms, shm_refusal=str(error))
        except (DiskRefusedError, MappingError, SpillDirError, StaleFileError) as error:
            logger.error("could not place %s in a file: %s", what, str(error))
            rooms = replace(rooms, disk_refusal=str(error))
        else:
            log_placement(demand, placement, what, storage)
            return storage, placement.home


def log_passed_over(demand: Demand, placement: Placement, what: str) -> None:
    """Log that it does not go to the disk, although that is set and comes first."""
    if placement.home == "shm" and not demand.random_access and is_tensor_spilling_enabled():
        logger.error("could not place %s in a file: %s", what, placement.reason)


def log_placement(
    demand: Demand, placement: Placement, what: str, storage: torch.UntypedStorage
) -> None:
    """Log where something went; loudly where a scatter must go to disk."""
    size = format_bytes(demand.nbytes)
    if demand.random_access and placement.home == "disk":
        told = "%s (%s) is written at random and must go to disk, which is slow: %s"
        logger.warning(told, what, size, placement.reason)
        # The logger is silent until a program configures it.
        warnings.warn(told % (what, size, placement.reason), RuntimeWarning, stacklevel=2)
    if placement.home != "memory":
        place = storage.filename if placement.home == "disk" else SHARED_MEMORY
        logger.info("allocated %s (%s) in %s: %s", what, size, place, placement.reason)


def no_home(demand: Demand, rooms: Rooms, placement: Placement, what: str) -> NoRoomError:
    """The error for what no home can hold safely."""
    return NoRoomError(
        f"no safe home for {what}: {placement.reason}",
        needed_bytes=demand.nbytes,
        available_bytes=best_offer(demand, rooms),
        remedy=REMEDY,
    )


def _checked(shape: int | Sequence[int], dtype: torch.dtype) -> tuple[tuple[int, ...], int]:
    sizes = checked_shape(shape)
    nbytes = checked_nbytes(sizes, dtype)
    if not is_mappable(dtype):
        raise UnsupportedTensorError(
            f"{dtype} (quantized) can be neither mapped nor shared in place",
            remedy="allocate the integer dtype, and keep scale and zero point beside it",
        )
    return sizes, nbytes


def _made(placement: Placement, demand: Demand, holds: TensorRecord | None) -> torch.UntypedStorage:
    if placement.home == "disk":
        return storage_in_new_file(demand.nbytes, holds=holds)
    if placement.home == "shm":
        return shared_storage(demand.nbytes)
    return torch.empty(demand.nbytes, dtype=torch.uint8, device="cpu").untyped_storage()
