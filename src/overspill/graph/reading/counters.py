"""What a loader's processes read, hit and waited for, counted without a lock.

Each process writes to a slot of its own in one shared tensor, and whoever asks adds the slots up. A
slot is one cache line, so that counting in one process does not slow another down.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError
from overspill.linux.device_reads import device_bytes_read
from overspill.recording.loader_counts import LOADERS, LoaderCounts
from overspill.tensors.layouts import tensor_over
from overspill.tensors.shared_memory import shared_storage
from overspill.units import format_bytes

_FIELDS = (
    "rows", "bytes_asked", "device_bytes", "hot_hits", "hot_lookups", "batches", "waited_ns",
    "elapsed_ns",
)  # fmt: skip
_PLACES = {name: place for place, name in enumerate(_FIELDS)}
_SLOT_BYTES = 8 * len(_FIELDS)


@dataclass(frozen=True, kw_only=True, repr=False)
class LoaderStats:
    """What a loader has done so far, over all its processes and epochs.

    Attributes:
        rows: Rows delivered, of all node and edge arrays together.
        bytes_asked: Their bytes.
        device_bytes: Bytes that the device read for it, as the kernel accounts for them
            (/proc/self/io); 0 where it does not. Topology and everything else that these processes
            read is among them.
        hot_hits: Rows that were found among the hot ones.
        hot_lookups: Rows that were looked for there.
        batches: Batches made.
        waited_s: Seconds that the caller waited for batches.
        elapsed_s: Seconds from the first wait of each epoch to its last batch.
    """

    rows: int = 0
    bytes_asked: int = 0
    device_bytes: int = 0
    hot_hits: int = 0
    hot_lookups: int = 0
    batches: int = 0
    waited_s: float = 0.0
    elapsed_s: float = 0.0

    @property
    def rows_per_s(self) -> float:
        """Rows a second of the time that passed; 0 before the first batch."""
        return self.rows / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def hot_rate(self) -> float:
        """The share of looked-up rows that were hot; 0 without hot rows."""
        return self.hot_hits / self.hot_lookups if self.hot_lookups else 0.0

    def __repr__(self) -> str:
        return (
            f"LoaderStats(batches={self.batches}, rows={self.rows}, "
            f"rows_per_s={self.rows_per_s:.0f}, asked={format_bytes(self.bytes_asked)}, "
            f"device={format_bytes(self.device_bytes)}, hot_rate={self.hot_rate:.3f}, "
            f"waited_s={self.waited_s:.2f} of {self.elapsed_s:.2f})"
        )


class SlotCounts:
    """One process's counts. One thread at a time; it does not pickle: ask for the slot anew.

    Args:
        values: int64, one a field; None counts for nobody else.
    """

    def __init__(self, values: npt.NDArray[np.int64] | None = None) -> None:
        self._values = np.zeros(len(_FIELDS), np.int64) if values is None else values
        self._device_bytes = device_bytes_read()
        self._waiting_since_ns = self._last_batch_ns = 0

    def add(self, **counts: int) -> None:
        """Add to fields of `LoaderStats` by name."""
        for name, count in counts.items():
            self._values[_PLACES[name]] += count

    def add_batch(self) -> None:
        """A batch was made here; what the device read for this process since the last is added."""
        self.add(batches=1)
        self.add_device_bytes()

    def add_device_bytes(self) -> None:
        """Add what the device read for this process since this was last asked."""
        before, self._device_bytes = self._device_bytes, device_bytes_read()
        if before is not None and self._device_bytes is not None:
            self.add(device_bytes=self._device_bytes - before)

    def wait_begins(self, *, first: bool = False) -> None:
        """The caller asks for a batch.

        Args:
            first: It is the first of an epoch: the time since the one before counts for nothing.
        """
        self._waiting_since_ns = time.monotonic_ns()
        if first:
            self._last_batch_ns = self._waiting_since_ns

    def wait_ends(self) -> None:
        """The caller has it."""
        now = time.monotonic_ns()
        self.add(
            waited_ns=now - self._waiting_since_ns,
            elapsed_ns=now - (self._last_batch_ns or self._waiting_since_ns),
        )
        self._last_batch_ns = now

    def stats(self) -> LoaderStats:
        """What was counted here."""
        return _stats(self._values)


class LoaderCounters:
    """The counts of all processes of a loader.

    It pickles to workers by its shared memory. Reading is safe at any time. A slot has one writer
    at a time: where two iterators of one loader run at once, counts of their workers may get lost.

    Args:
        slots: One for the loader's own process, and one for each worker.

    Raises:
        NoRoomError: /dev/shm has no room (64 bytes a slot); one slot needs none.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise InputError(f"{slots} slots", remedy="count this process, and each worker")
        shape = (slots, len(_FIELDS))
        if slots == 1:
            self._values = torch.zeros(shape, dtype=torch.int64, device="cpu")
        else:
            self._values = tensor_over(shared_storage(slots * _SLOT_BYTES), torch.int64, shape)
            self._values.zero_()
        LOADERS.follow(self, partial(_counts, self._values.numpy()))

    def slot(self, place: int) -> SlotCounts:
        """The counts of one process, for it alone to write.

        Args:
            place: 0 is the loader's own process, 1 its worker 0.
        """
        return SlotCounts(self._values.numpy()[place])

    def totals(self) -> LoaderStats:
        """The sums over all slots."""
        return _stats(self._values.numpy().sum(axis=0))


def _counts(values: npt.NDArray[np.int64]) -> LoaderCounts:
    names = ("rows", "batches", "bytes_asked", "waited_ns")
    sums = values.sum(axis=0)
    return LoaderCounts(*(int(sums[_PLACES[name]]) for name in names))


def _stats(values: npt.NDArray[np.int64]) -> LoaderStats:
    held: dict[str, Any] = dict(zip(_FIELDS, values.tolist(), strict=True))
    for name in ("waited", "elapsed"):
        held[f"{name}_s"] = held.pop(f"{name}_ns") / 1e9
    return LoaderStats(**held)
