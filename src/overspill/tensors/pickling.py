"""Disk-backed tensors through torch.multiprocessing by path, by wrapping torch's own reducers.

torch cannot send a file mapping: under the file_descriptor strategy it fails in the queue's feeder
thread and the receiver hangs, under file_system it copies everything into /dev/shm. The reducers
live in ForkingPickler's table, never in copyreg, which would put paths into ``torch.save``.

The reducer of UntypedStorage covers what keeps its storage inside something else: subclasses,
sparse tensors, typed storages. That of Tensor and Parameter carries the conjugate and negative
flags too, which torch's drops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import torch
from torch.multiprocessing import reductions

from overspill.errors import OverspillError
from overspill.settings import current_settings
from overspill.storage.workspace import join_inherited_runs
from overspill.tensors.backing import file_behind, file_behind_storage
from overspill.tensors.handles import FileSpan, handle_over, opened_handle, span_of
from overspill.tensors.in_flight import InFlight, Reduced
from overspill.tensors.registry import MappedFile

# An exception in this thread is printed and dropped, and the receiver waits for ever.
_FEEDER = "QueueFeederThread"

logger = logging.getLogger("overspill")


class ByPath:
    """A reducer for one type: by path where a file is behind, torch's own way elsewhere."""

    def __init__(
        self,
        stock: Callable[[Any], Reduced],
        find: Callable[[Any], MappedFile | None],
        reduce: Callable[[Any, MappedFile], Reduced],
        *,
        refuse: Callable[[OverspillError], Reduced],
    ) -> None:
        self.stock = stock
        self._find = find
        self._reduce = reduce
        self._refuse = refuse

    def __call__(self, held: Any) -> Reduced:
        """Reduce a tensor or a storage."""
        try:
            record = self._find(held)
            # A user's own mapping is left to torch while spilling is off.
            if record is None or not (record.ours or current_settings().spill_dir is not None):
                return self.stock(held)
            return self._reduce(held, record)
        except OverspillError as error:
            return self._refuse(error)


def register_reducers() -> None:
    """Register the reducers in ForkingPickler's table, and join the run that a parent exported.

    Idempotent. Whatever was registered before is wrapped, and does what it did for everything that
    is not disk-backed and not a batch on its way.
    """
    table: dict[type, Callable[[Any], Reduced]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    reducers = by_path_reducers(lambda kind: _forking(table, kind), refuse=_refused)
    for kind, reducer in reducers.items():
        if not isinstance(table.get(kind), ByPath):
            ForkingPickler.register(kind, reducer)
    join_inherited_runs()


def by_path_reducers(
    stock_of: Callable[[type], Callable[[Any], Reduced]],
    *,
    refuse: Callable[[OverspillError], Reduced] | None = None,
) -> dict[type, ByPath]:
    """The reducers of tensors, Parameters and storages, for any pickler's table.

    Args:
        stock_of: Gives what the pickler does with a type otherwise.
        refuse: Makes of an error what is sent; None raises it at the send.
    """
    told = refuse or raise_at_send
    return {
        torch.Tensor: ByPath(stock_of(torch.Tensor), file_behind, _reduce_tensor, refuse=told),
        torch.nn.Parameter: ByPath(
            stock_of(torch.nn.Parameter), file_behind, _reduce_tensor, refuse=told
        ),
        torch.UntypedStorage: ByPath(
            stock_of(torch.UntypedStorage), file_behind_cpu_storage, _reduce_storage, refuse=told
        ),
    }


def _forking(table: dict[type, Callable[[Any], Reduced]], kind: type) -> Callable[[Any], Reduced]:
    if kind is torch.UntypedStorage:
        return InFlight(table.get(kind, reductions.reduce_storage))
    return table.get(kind, reductions.reduce_tensor)


def file_behind_cpu_storage(storage: torch.UntypedStorage) -> MappedFile | None:
    """The mapped file behind a storage of any device, or None."""
    return file_behind_storage(storage) if storage.device.type == "cpu" else None


def _reduce_tensor(tensor: torch.Tensor, record: MappedFile) -> Reduced:
    torch.utils.hooks.warn_if_has_hooks(tensor)
    return _open_tensor, handle_over(tensor, record).__reduce__()[1]


def _reduce_storage(storage: torch.UntypedStorage, record: MappedFile) -> Reduced:
    return _open_storage, (span_of(storage, record),)


def _open_tensor(*fields: Any) -> torch.Tensor:
    return opened_handle(*fields).open()


def _open_storage(span: FileSpan) -> torch.UntypedStorage:
    return span.open()


def _refused(error: OverspillError) -> Reduced:
    """Raise at the send; from a queue's feeder thread, where nobody listens, at the receiver."""
    if threading.current_thread().name != _FEEDER:
        raise error
    # As text, and without its traceback: whoever keeps either would keep the tensor alive.
    logger.error("cannot send a tensor: %s", str(error))
    return raise_at_send, (error.with_traceback(None),)


def raise_at_send(error: OverspillError) -> NoReturn:
    """Refuse a tensor where it is sent; also what a receiver runs, see `_refused`."""
    raise error
