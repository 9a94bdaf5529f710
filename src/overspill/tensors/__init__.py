"""torch over storage: allocate, spill, share by path, release.

Importing it registers the reducers by which disk-backed tensors travel through
torch.multiprocessing, cloudpickle, Ray and loky, has DataLoader workers watch the room for their
batches, and joins the run that a parent process exported.
"""

from __future__ import annotations

from overspill.tensors.backing import is_disk_backed
from overspill.tensors.batches import register_worker_loop, spill_batches
from overspill.tensors.concatenate import concatenate_chunks
from overspill.tensors.handles import TensorHandle, handle
from overspill.tensors.lifetime import discard, spill_scope
from overspill.tensors.memory_use import MemoryReport, memory_report
from overspill.tensors.picklers import register_picklers
from overspill.tensors.pickling import register_reducers
from overspill.tensors.preshared import allocate_preshared, plan_placement
from overspill.tensors.release import (
    available_memory_bytes,
    has_live_mapping,
    release_page_cache,
    release_page_cache_by_path,
)
from overspill.tensors.resident import Residency, residency
from overspill.tensors.share_in_place import leave_spill_files_alone
from overspill.tensors.sharing import share_memory, share_memory_for_ipc
from overspill.tensors.spill import (
    allocate_disk_backed,
    is_tensor_spilling_enabled,
    load_spilled_tensor,
    prepare_spill_dir,
    spill_tensor_to_disk,
)

__all__ = [
    "MemoryReport",
    "Residency",
    "TensorHandle",
    "allocate_disk_backed",
    "allocate_preshared",
    "available_memory_bytes",
    "concatenate_chunks",
    "discard",
    "handle",
    "has_live_mapping",
    "is_disk_backed",
    "is_tensor_spilling_enabled",
    "load_spilled_tensor",
    "memory_report",
    "plan_placement",
    "prepare_spill_dir",
    "release_page_cache",
    "release_page_cache_by_path",
    "residency",
    "share_memory",
    "share_memory_for_ipc",
    "spill_batches",
    "spill_scope",
    "spill_tensor_to_disk",
]

register_reducers()
register_picklers()
register_worker_loop()
leave_spill_files_alone()
