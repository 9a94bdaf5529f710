"""Overspill: PyTorch tensors and graphs bigger than the memory you may use.

The public names are resolved on first use, so that ``import overspill`` loads no torch, numba,
pyarrow, Ray or PyTorch Geometric of its own. As soon as torch is loaded, before or after, by
whomever, disk-backed tensors pickle by path.
"""

from __future__ import annotations

import importlib
import logging
from types import ModuleType
from typing import TYPE_CHECKING, Any

from overspill.imports import when_imported

# Eager, because the function shares its name with its module: a later first import of the module
# would otherwise put the module in the function's place.
from overspill.settings import settings as settings

if TYPE_CHECKING:  # for whoever checks a program's types: the same names, by their homes
    from overspill.errors import OverspillError as OverspillError
    from overspill.graph import Columns as Columns
    from overspill.graph import Dataset as Dataset
    from overspill.graph import PartitionBook as PartitionBook
    from overspill.graph import Partitioned as Partitioned
    from overspill.graph import RangePartitionBook as RangePartitionBook
    from overspill.graph import SamplingSpec as SamplingSpec
    from overspill.graph import TensorPartitionBook as TensorPartitionBook
    from overspill.graph import build_csr as build_csr
    from overspill.graph import build_dataset as build_dataset
    from overspill.graph import open_dataset as open_dataset
    from overspill.graph import open_partition as open_partition
    from overspill.graph import partition_dataset as partition_dataset
    from overspill.recording import Recording as Recording
    from overspill.recording import record_memory as record_memory
    from overspill.tensors import MemoryReport as MemoryReport
    from overspill.tensors import Residency as Residency
    from overspill.tensors import TensorHandle as TensorHandle
    from overspill.tensors import allocate_disk_backed as allocate_disk_backed
    from overspill.tensors import allocate_preshared as allocate_preshared
    from overspill.tensors import available_memory_bytes as available_memory_bytes
    from overspill.tensors import concatenate_chunks as concatenate_chunks
    from overspill.tensors import discard as discard
    from overspill.tensors import handle as handle
    from overspill.tensors import has_live_mapping as has_live_mapping
    from overspill.tensors import is_disk_backed as is_disk_backed
    from overspill.tensors import is_tensor_spilling_enabled as is_tensor_spilling_enabled
    from overspill.tensors import load_spilled_tensor as load_spilled_tensor
    from overspill.tensors import memory_report as memory_report
    from overspill.tensors import plan_placement as plan_placement
    from overspill.tensors import prepare_spill_dir as prepare_spill_dir
    from overspill.tensors import release_page_cache as release_page_cache
    from overspill.tensors import release_page_cache_by_path as release_page_cache_by_path
    from overspill.tensors import residency as residency
    from overspill.tensors import share_memory as share_memory
    from overspill.tensors import share_memory_for_ipc as share_memory_for_ipc
    from overspill.tensors import spill_batches as spill_batches
    from overspill.tensors import spill_scope as spill_scope
    from overspill.tensors import spill_tensor_to_disk as spill_tensor_to_disk

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


if not TYPE_CHECKING:  # by which every misspelt name would have a type

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


# Whoever uses the library decides what is shown of its log.
logging.getLogger("overspill").addHandler(logging.NullHandler())
when_imported("torch", _enter_torch)
