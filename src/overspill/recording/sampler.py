"""Takes one sample of everything a recording shows: memory, devices, loaders."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np

from overspill.errors import UnavailableError
from overspill.linux.process_io import DeviceBytes, descendants, device_bytes
from overspill.linux.processes import process_memory
from overspill.recording.fields import FIELDS, UNKNOWN, Rows
from overspill.recording.loader_counts import LOADERS, LoaderCounts
from overspill.recording.memory_sources import MemorySource

_LOOK_FOR_CHILDREN_NS = 1_000_000_000


class Sampler:
    """Samples counted from the moment it was made. One thread at a time.

    About 0.3 ms a sample. The process's memory is the kernel's counters: a walk of its page tables
    (smaps_rollup) tells the same to some pages a thread, takes 7 ms a GiB resident, and keeps the
    program from mapping meanwhile.

    Args:
        memory: Whose memory.
        pid: Whose devices and resident memory, its children's devices included; None is this
            process.
        loaders: Tells what loaders have counted so far; None asks this process's own.
    """

    def __init__(
        self,
        memory: MemorySource,
        *,
        pid: int | None = None,
        loaders: Callable[[], LoaderCounts] | None = None,
    ) -> None:
        self._memory = memory
        self.pid = os.getpid() if pid is None else pid
        self._loaders = loaders or LOADERS.totals
        self._children: list[int] = []
        self._looked_ns = 0
        self.source = ""
        self.began_ns = time.monotonic_ns()
        self._loaded_before = self._loaders()
        self._kills = self._kills_before = 0
        self._device = self._device_before = self._tree_device(look=True)

    def take(self, *, boundary: bool = False) -> Rows:
        """Take a sample now.

        Args:
            boundary: What was done until now is to be told from what comes: children are looked for
                at once, and not once a second.

        Returns:
            One row, (fields,); what the system does not tell is `UNKNOWN`.

        Raises:
            UnavailableError: The memory cannot be read.
        """
        use = self._memory.read()
        kills = self._memory.kill_count()
        if use.path == self.source:  # another group has counted its own
            self._kills += kills - self._kills_before
        self.source, self._kills_before = use.path, kills
        loaded = self._loaders().minus(self._loaded_before)
        limit = UNKNOWN if use.limit_bytes is None else use.limit_bytes
        row = (
            limit,
            use.usage_bytes,
            use.anon_bytes,
            use.shmem_bytes,
            use.clean_file_bytes,
            use.dirty_bytes,
            use.writeback_bytes,
            *self._process(),
            time.monotonic_ns() - self.began_ns,
            *self._devices(boundary),
            *loaded,
            self._kills,
        )
        assert len(row) == len(FIELDS)
        return np.array(row, np.int64)

    def _process(self) -> tuple[int, int, int]:
        try:
            own = process_memory(self.pid, exact=False)
        except UnavailableError:
            return UNKNOWN, UNKNOWN, UNKNOWN
        return own.anon_bytes, own.file_bytes, own.shmem_bytes

    def _devices(self, boundary: bool) -> tuple[int, int]:
        """What was read and written since the beginning; never less than at the last sample."""
        before, now = self._device, self._tree_device(boundary)
        if before is None or self._device_before is None:
            return UNKNOWN, UNKNOWN
        if now is not None:
            # A child that ended and is not yet in its parent's account is missed for a moment; one
            # that nobody waits for, for good.
            self._device = DeviceBytes(
                max(before.read_bytes, now.read_bytes), max(before.written_bytes, now.written_bytes)
            )
        held = self._device or before
        return (
            held.read_bytes - self._device_before.read_bytes,
            held.written_bytes - self._device_before.written_bytes,
        )

    def _tree_device(self, look: bool) -> DeviceBytes | None:
        # The root first: what a child that is waited for meanwhile hands up must not count twice.
        own = device_bytes(self.pid)
        if own is None:
            return None
        now = time.monotonic_ns()
        if look or now - self._looked_ns > _LOOK_FOR_CHILDREN_NS:
            self._looked_ns = now
            self._children = descendants(self.pid)
        held = [one for pid in self._children if (one := device_bytes(pid)) is not None]
        return DeviceBytes(
            own.read_bytes + sum(one.read_bytes for one in held),
            own.written_bytes + sum(one.written_bytes for one in held),
        )
