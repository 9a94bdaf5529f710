"""Overspill: PyTorch tensors and graphs bigger than the memory you may use.

The public names are resolved on first use, so that ``import overspill`` loads no torch, numba,
pyarrow, Ray or PyTorch Geometric of its own. As soon as torch is loaded, before or after, by
whomever, disk-backed tensors pickle by path.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from overspill.imports import when_imported

# Eager, because the function shares its name with its module: a later first import of the module
# would otherwise put the module in the function's place.
from overspill.settings import settings as settings

if TYPE_CHECKING:
    from overspill.errors import OverspillError as OverspillError

__version__ = "0.1.0"

_HOMES = {
    "OverspillError": "errors",
    "MemoryReport": "tensors",
    "Residency": "tensors",
    "TensorHandle": "tensors",
    "allocate_disk_backed": "tensors",
    "allocate_preshared": "tensors",
    "available_memory_bytes": "tensors",
    "concatenate_chunks": "tensors",
    "discard": "tensors",
    "handle": "tensors",
    "has_live_mapping": "tensors",
    "is_disk_backed": "tensors",
    "is_tensor_spilling_enabled": "tensors",
    "load_spilled_tensor": "tensors",
    "memory_report": "tensors",
    "plan_placement": "tensors",
    "prepare_spill_dir": "tensors",
    "release_page_cache": "tensors",
    "release_page_cache_by_path": "tensors",
    "residency": "tensors",
    "share_memory": "tensors",
    "share_memory_for_ipc": "tensors",
    "spill_batches": "tensors",
    "spill_scope": "tensors",
    "spill_tensor_to_disk": "tensors",
    "Recording": "recording",
    "record_memory": "recording",
    "Columns": "graph",
    "Dataset": "graph",
    "PartitionBook": "graph",
    "Partitioned": "graph",
    "RangePartitionBook": "graph",
    "SamplingSpec": "graph",
    "TensorPartitionBook": "graph",
    "build_csr": "graph",
    "build_dataset": "graph",
    "open_dataset": "graph",
    "open_partition": "graph",
    "partition_dataset": "graph",
}

__all__ = ["__version__", "settings", *_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'overspill' has no attribute {name!r}")
    if home in ("tensors", "graph"):
        # Torch first: who imports it elsewhere holds its lock while it waits for these.
        importlib.import_module("torch")
    value = getattr(importlib.import_module(f"overspill.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _enter_torch(_torch: ModuleType) -> None:
    try:
        importlib.import_module("overspill.tensors")
    except RuntimeError as error:
        # Another thread is importing it and waits for torch: it registers as soon as it goes on.
        if type(error).__name__ != "_DeadlockError":
            raise


when_imported("torch", _enter_torch)
