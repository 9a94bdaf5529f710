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
from overspill.tensors.registry import MappedFile

Reduced = tuple[Any, ...]
# An exception in this thread is printed and dropped, and the receiver waits for ever.
_FEEDER = "QueueFeederThread"

logger = logging.getLogger("overspill")


class _ByPath:
    """A reducer for one type: by path where a file is behind, torch's own way elsewhere."""

    def __init__(
        self,
        stock: Callable[[Any], Reduced],
        find: Callable[[Any], MappedFile | None],
        reduce: Callable[[Any, MappedFile], Reduced],
    ) -> None:
        self.stock = stock
        self._find = find
        self._reduce = reduce

    def __call__(self, held: Any) -> Reduced:
        try:
            record = self._find(held)
            # A user's own mapping is left to torch while spilling is off.
            if record is None or not (record.ours or current_settings().spill_dir is not None):
                return self.stock(held)
            return self._reduce(held, record)
        except OverspillError as error:
            return _refused(error)


def register_reducers() -> None:
    """Register the reducers in ForkingPickler's table, and join the run that a parent exported.

    Idempotent. Whatever was registered before is wrapped, and does what it did for everything that
    is not disk-backed.
    """
    _wrap(torch.Tensor, reductions.reduce_tensor, file_behind, _reduce_tensor)
    _wrap(torch.nn.Parameter, reductions.reduce_tensor, file_behind, _reduce_tensor)
    _wrap(
        torch.UntypedStorage, reductions.reduce_storage, _file_behind_cpu_storage, _reduce_storage
    )
    join_inherited_runs()


def _wrap(
    kind: type,
    fallback: Callable[[Any], Reduced],
    find: Callable[[Any], MappedFile | None],
    reduce: Callable[[Any, MappedFile], Reduced],
) -> None:
    table: dict[type, Callable[[Any], Reduced]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    stock = table.get(kind, fallback)
    if not isinstance(stock, _ByPath):
        ForkingPickler.register(kind, _ByPath(stock, find, reduce))


def _file_behind_cpu_storage(storage: torch.UntypedStorage) -> MappedFile | None:
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
    logger.error("cannot send a disk-backed tensor: %s", str(error))
    return _raise, (error.with_traceback(None),)


def _raise(error: OverspillError) -> NoReturn:
    raise error
