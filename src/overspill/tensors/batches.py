"""Has DataLoader workers spill the batches that do not fit in /dev/shm.

A stock DataLoader dies in ``default_collate`` when /dev/shm is full. torch's collate, PyG's collate
and PyG's filter all make their tensors with ``UntypedStorage._new_shared``: within a worker that is
the one place watched, and torch's own worker loop is the one way into every worker, forked or
spawned. Nothing of torch changes in the parent, nor in a worker while batches are not spilled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from types import TracebackType
from typing import Any, cast

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker

from overspill.errors import SettingsError, SpillDirError
from overspill.settings import current_settings, settings
from overspill.storage.workspace import join_run
from overspill.tensors.in_flight import INSIDE, storage_to_send
from overspill.tensors.layouts import tensor_over


class BatchSpan:
    """What `spill_batches` returns: in force from its making to the end of its ``with`` block."""

    def __init__(self) -> None:
        self._span = ExitStack()
        held = self._span.enter_context(settings(spill_batches=True))
        try:
            if held.spill_dir is None:
                raise SpillDirError(
                    "batches cannot be spilled: no spill directory is set",
                    remedy="set OVERSPILL_DIR, or use overspill.settings(spill_dir=...)",
                )
            join_run(held.spill_dir)
        except BaseException:
            self._span.close()
            raise
        # Called as a function, nobody else keeps it, and a collected span would end.
        _SPANS.add(self)

    def __repr__(self) -> str:
        return f"BatchSpan({'in force' if self in _SPANS else 'ended'})"

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _SPANS.discard(self)
        self._span.close()


_SPANS: set[BatchSpan] = set()


def spill_batches() -> BatchSpan:
    """Let batches that do not fit in /dev/shm go through files, in DataLoaders started from now on.

    For stock DataLoaders, PyG's and Overspill's, with workers of every start method and under both
    sharing strategies. A worker's tensor that would leave /dev/shm less than its reserve
    (``OVERSPILL_SHM_RESERVE_BYTES``), whatever the spill threshold, is made in a file without a
    name on the spill directory's disk: the receiver maps it, nothing is copied, and it is gone with
    the last tensor over it, also when a worker is killed. So is one above 64 KiB that takes more of
    the memory than can be had safely, since /dev/shm is memory too. All others stay shared memory,
    but without a name. Under the file_system strategy each large tensor takes a descriptor, as
    under the other, and one of up to 64 KiB is sent as bytes, and received as memory.

    A tensor that a worker made in memory of its own, as ``torch.cat`` does, is copied once when it
    is sent, with its whole storage, and stays as it is in the worker: a later write there does not
    reach the receiver, and two views of one such storage arrive as two copies. Without this, torch
    moves the storage itself, and both sides go on sharing it.

    Call it as a function, for the rest of the process, or use it in ``with``. Setting
    ``OVERSPILL_SPILL_BATCHES=1`` does the same. Workers that run already are not reached.

    Returns:
        A context manager whose end takes the setting back.

    Raises:
        SpillDirError: No spill directory is set, or it cannot be used.
        DiskRefusedError: The disk is full.
        SettingsError: A setting in the environment cannot be understood.
    """
    return BatchSpan()


def allocate_in_worker(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor that a worker hands over without a copy; outside of one, a plain one.

    Raises:
        NoRoomError: It does not fit in /dev/shm, and batches are not spilled.
        SpillDirError: The spill directory cannot be used.
        DiskRefusedError: The disk refused.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if get_worker_info() is None or nbytes == 0:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return tensor_over(storage_to_send(nbytes), dtype, shape)


def register_worker_loop() -> None:
    """Have DataLoader workers watch the room. Idempotent; decided in each worker as it starts."""
    if not isinstance(worker._worker_loop, _WorkerLoop):
        worker._worker_loop = _WorkerLoop(worker._worker_loop)  # type: ignore[assignment]


class _WorkerLoop:
    """torch's worker loop, after the room is watched where batches are to be spilled."""

    def __init__(self, stock: Callable[..., None]) -> None:
        # Its names are torch's, by which it pickles while nothing is to be spilled.
        functools.update_wrapper(self, stock)
        self._stock = stock

    def __call__(self, *args: Any) -> None:
        try:
            wanted = current_settings().spill_batches
        except SettingsError:
            wanted = True  # the first batch says so, where torch takes it to the parent
        if wanted:
            _watch_allocations()
        self._stock(*args)

    def __reduce__(self) -> str | tuple[Any, ...]:
        held = current_settings()
        if not held.spill_batches:
            return "_worker_loop"
        # A forkserver that runs already hands down an older environment.
        return functools.partial, (_run_under, asdict(held))


def _run_under(held: dict[str, Any], *args: Any) -> None:
    with settings(**held):
        worker._worker_loop(*args)


def _watch_allocations() -> None:
    stock: Callable[..., Any] = torch.UntypedStorage._new_shared

    def new_shared(
        _cls: type[torch.UntypedStorage], size: int, *, device: Any = "cpu"
    ) -> torch.UntypedStorage:
        # What is made there calls this again, for its shared memory.
        if getattr(INSIDE, "making", False) or size == 0 or torch.device(device).type != "cpu":
            return cast(torch.UntypedStorage, stock(size, device=device))
        return storage_to_send(int(size))

    torch.UntypedStorage._new_shared = classmethod(new_shared)  # type: ignore[assignment]
