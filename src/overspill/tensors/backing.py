"""Which file is behind a tensor, if any: ours, by the registry, or a user's own mapping."""

from __future__ import annotations

import os
from typing import cast

import torch
from torch.nn.parameter import is_lazy

from overspill.errors import OverspillError
from overspill.linux.identity import FileIdentity, identify_file
from overspill.linux.mounts import is_memory_backed
from overspill.linux.processes import has_mapping
from overspill.tensors.mapping import remember_storage
from overspill.tensors.registry import MAPPED, MappedFile


def is_disk_backed(tensor: object) -> bool:
    """Whether a tensor's memory is a mapped file on a disk.

    Touches no page of the data.

    Args:
        tensor: Anything.

    Returns:
        True for strided CPU tensors over a file, and for their views; False for everything else:
        memory, shared memory, files on tmpfs, other devices and layouts, and what is no tensor.
    """
    # By type: asked for its class, a proxy of something that is gone raises.
    known = issubclass(type(tensor), torch.Tensor)
    return known and file_behind(cast(torch.Tensor, tensor)) is not None


def file_behind(tensor: torch.Tensor) -> MappedFile | None:
    """The mapped file that holds a tensor's storage, or None."""
    storage = cpu_storage(tensor)
    return file_behind_storage(storage) if storage is not None else None


def cpu_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a strided CPU tensor that has memory; None for every other kind of tensor."""
    # A subclass's own __torch_function__ may refuse these questions, or answer with wrappers.
    with torch._C.DisableTorchFunctionSubclass():
        strided = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if not strided or tensor.is_nested or tensor.is_quantized or is_lazy(tensor):
            return None
        try:
            storage = tensor.untyped_storage()
            # A fake tensor says "cpu" over a storage without memory; others only when asked for it.
            return storage if storage.device.type == "cpu" and storage.data_ptr() >= 0 else None
        except (NotImplementedError, RuntimeError):  # functorch's and other wrappers have none
            return None


def file_behind_storage(storage: torch.UntypedStorage) -> MappedFile | None:
    """The mapped file that holds a CPU storage, or None."""
    record = MAPPED.at(storage.data_ptr())
    if record is not None:
        return record
    # torch records it for from_file(shared=True) alone, never for shared memory.
    filename = storage.filename
    if filename is None or storage.nbytes() == 0:
        return None
    return _foreign(storage, os.path.abspath(filename))  # noqa: PTH100 - links stay as they are


def _foreign(storage: torch.UntypedStorage, path: str) -> MappedFile | None:
    """A user's own mapping, entered so that it is looked at only once."""
    try:
        if is_memory_backed(path):
            return None
        identity = identify_file(path)
    except OverspillError:
        identity = _NOWHERE
    # The name may have been given to another file since it was mapped.
    if identity != _NOWHERE and not has_mapping(identity.device, identity.inode):
        identity = _NOWHERE
    return remember_storage(storage, path, identity, ours=False)


# Matches no file: what is mapped is no longer found under its name, so it cannot be sent by path.
_NOWHERE = FileIdentity(device=-1, inode=-1, birth_time_ns=None, nbytes=-1)
