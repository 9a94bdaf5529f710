"""Disk-backed tensors by path through cloudpickle, Ray and loky, each by that pickler's own table.

These picklers do not know ForkingPickler's table, and ship every byte of a storage, even for a view
of one element. The tables are entered when their packages are imported, by whomever; copyreg's is
never touched, which would put paths into ``torch.save``, ``pickle`` and ``copy``.

Ray's own RAY_ENABLE_ZERO_COPY_TORCH_TENSORS replaces the entry of plain tensors when it starts:
they then go through the object store; handles still travel by path. joblib's multiprocessing
backend has a table a pool, out of reach: send handles there.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from types import ModuleType
from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_typed_storage

from overspill.imports import when_imported
from overspill.tensors.in_flight import Reduced
from overspill.tensors.pickling import (
    ByPath,
    by_path_reducers,
    file_behind_cpu_storage,
    raise_at_send,
)

# ray carries a copy of cloudpickle, as old versions of joblib do.
_CLOUDPICKLES = ("cloudpickle", "ray.cloudpickle", "joblib.externals.cloudpickle")
_LOKYS = ("loky.backend.reduction", "joblib.externals.loky.backend.reduction")
_PROTOCOL = 5

Table = MutableMapping[type, Callable[[Any], Reduced]]


def register_picklers() -> None:
    """Enter the reducers into the tables of the picklers that are, or will be, imported."""
    for name in _CLOUDPICKLES:
        when_imported(name, _enter_cloudpickle)
    for name in _LOKYS:
        when_imported(name, _enter_loky)


def _enter_cloudpickle(module: ModuleType) -> None:
    # A ChainMap whose first part is cloudpickle's own and whose second is copyreg's: writing
    # changes the first alone.
    _enter(module.CloudPickler.dispatch_table)


def _enter_loky(module: ModuleType) -> None:
    # Needed beside cloudpickle's for those who set loky to another pickler (LOKY_PICKLER).
    _enter(module._dispatch_table)


def _enter(table: Table) -> None:
    reducers = by_path_reducers(lambda kind: table.get(kind, _stock))
    # Subclasses and sparse tensors keep theirs in a typed storage, whose bytes would be saved.
    reducers[torch.TypedStorage] = ByPath(
        table.get(torch.TypedStorage, _stock),
        lambda storage: file_behind_cpu_storage(storage._untyped_storage),
        lambda storage, _record: (rebuild_typed_storage, (storage._untyped_storage, storage.dtype)),
        refuse=raise_at_send,
    )
    for kind, reducer in reducers.items():
        if not isinstance(table.get(kind), ByPath):
            table[kind] = reducer


def _stock(held: Any) -> Reduced:
    """What the pickler would have done without an entry."""
    reduced: Reduced = held.__reduce_ex__(_PROTOCOL)
    return reduced
