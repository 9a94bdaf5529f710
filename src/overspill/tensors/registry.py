"""Knows which memory of this process is a mapped file, and which file.

torch records a filename for shared mappings only, and forgets the file's identity; so every mapping
that `overspill.tensors.mapping` makes is entered here and found again by the address of a
tensor's storage. An entry holds its mapping weakly: it never keeps memory alive, and a dead entry
is never taken for the anonymous memory that later reuses its addresses.

Cost: a lookup is one binary search; entering is linear in the number of live mappings only when
dead entries are swept, which happens each time the table has doubled.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from overspill.linux.identity import FileIdentity
from overspill.linux.mapping import Mapping

Owner = Mapping | torch.UntypedStorage


@dataclass(frozen=True, eq=False, kw_only=True)
class MappedFile:
    """One mapping of one whole file.

    Attributes:
        path: Where the file was when it was mapped, absolute.
        identity: Which file it was.
        address: The first byte of the mapping.
        nbytes: Its length, that of the file.
        shared: Whether writes reach the file (a spill file) or stay in this process.
        ours: Whether Overspill mapped it; a user's own mapping is False.
        owner: Gives the object that keeps the mapping alive, or None once it is gone.
    """

    path: str
    identity: FileIdentity
    address: int
    nbytes: int
    shared: bool
    ours: bool
    owner: Callable[[], Owner | None]

    @property
    def alive(self) -> bool:
        """Whether the mapping still exists at its address."""
        return self.owner() is not None


def storage_owner(storage: torch.UntypedStorage) -> Callable[[], torch.UntypedStorage | None]:
    """A weak reference to a storage that also notices when torch moved it off its mapping."""
    # A plain weakref to the Python object is no use: torch drops and revives that object freely.
    reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    address = storage.data_ptr()

    def owner() -> torch.UntypedStorage | None:
        held = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        # share_memory_() under the file_system strategy swaps the memory beneath a storage.
        return held if held is not None and held.data_ptr() == address else None

    return owner


def mapping_owner(mapping: Mapping) -> Callable[[], Mapping | None]:
    """A weak reference to a private mapping."""
    return weakref.ref(mapping)


class Registry:
    """The mapped files of this process, by address and by identity. Safe between threads."""

    def __init__(self) -> None:
        # Reentrant: the collector may run a user's destructor, which calls `discard`, inside it.
        self._lock = threading.RLock()
        self._addresses: list[int] = []
        self._by_address: dict[int, MappedFile] = {}
        self._by_identity: dict[tuple[FileIdentity, bool], MappedFile] = {}
        self._sweep_at = 128
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        # Another thread of the parent may have held it at the moment of the fork.
        self._lock = threading.RLock()

    def enter(self, record: MappedFile) -> None:
        """Enter a mapping that has just been made."""
        with self._lock:
            if len(self._addresses) >= self._sweep_at:
                self._sweep()
            first = bisect_left(self._addresses, record.address)
            last = bisect_left(self._addresses, record.address + max(record.nbytes, 1))
            # Whatever lay here is gone, or the kernel would not have given the addresses again.
            for address in self._addresses[first:last]:
                self._forget(self._by_address.pop(address))
            self._by_address[record.address] = record
            self._addresses[first:last] = [record.address]
            # A user's own mapping may be shorter than its file, and is not ours to hand out.
            if record.ours:
                self._by_identity[record.identity, record.shared] = record

    def at(self, address: int) -> MappedFile | None:
        """The live mapping that holds this address."""
        with self._lock:
            place = bisect_right(self._addresses, address) - 1
            if place < 0:
                return None
            record = self._by_address.get(self._addresses[place])
        if record is None or address >= record.address + record.nbytes:
            return None
        return record if record.alive else None

    def of(self, identity: FileIdentity, *, shared: bool) -> Owner | None:
        """The owner of our live mapping of this file, so that we never map it twice."""
        with self._lock:
            record = self._by_identity.get((identity, shared))
        return record.owner() if record is not None else None

    def records(self) -> list[MappedFile]:
        """Every live mapping."""
        with self._lock:
            known = list(self._by_address.values())
        return [record for record in known if record.alive]

    def _sweep(self) -> None:
        for address, record in list(self._by_address.items()):
            if not record.alive:
                del self._by_address[address]
                self._forget(record)
        self._addresses = sorted(self._by_address)
        self._sweep_at = max(128, 2 * len(self._addresses))

    def _forget(self, record: MappedFile) -> None:
        key = (record.identity, record.shared)
        if self._by_identity.get(key) is record:
            del self._by_identity[key]


MAPPED = Registry()
