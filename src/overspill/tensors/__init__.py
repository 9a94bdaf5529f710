"""torch over storage: allocate, spill, share by path, release.

Importing it registers the reducers by which disk-backed tensors travel through
torch.multiprocessing, and joins the run that a parent process exported.
"""

from __future__ import annotations

from overspill.tensors.backing import is_disk_backed
from overspill.tensors.handles import TensorHandle, handle
from overspill.tensors.pickling import register_reducers
from overspill.tensors.release import available_memory_bytes, release_page_cache
from overspill.tensors.spill import (
    allocate_disk_backed,
    is_tensor_spilling_enabled,
    load_spilled_tensor,
    prepare_spill_dir,
    spill_tensor_to_disk,
)

__all__ = [
    "TensorHandle",
    "allocate_disk_backed",
    "available_memory_bytes",
    "handle",
    "is_disk_backed",
    "is_tensor_spilling_enabled",
    "load_spilled_tensor",
    "prepare_spill_dir",
    "release_page_cache",
    "spill_tensor_to_disk",
]

register_reducers()
