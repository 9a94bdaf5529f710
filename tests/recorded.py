"""Rows and recordings for tests, from figures that a test writes down."""

from __future__ import annotations

import numpy as np

from overspill.linux.cgroups import MemoryUse
from overspill.recording import Recording
from overspill.recording.fields import FIELDS, PLACES, Rows
from overspill.recording.loader_counts import LoaderCounts
from overspill.recording.sampler import Sampler

MIB = 1 << 20
# No sample comes of itself within a test.
RARELY = 3600


def row(**figures: int) -> Rows:
    """One sample, zeros where nothing is said; the use is what its kinds add up to."""
    found = np.zeros(len(FIELDS), np.int64)
    for name, value in figures.items():
        found[PLACES[name]] = value
    if "usage_bytes" not in figures:
        kinds = ("anon_bytes", "shmem_bytes", "clean_file_bytes", "dirty_bytes", "writeback_bytes")
        found[PLACES["usage_bytes"]] = sum(int(found[PLACES[name]]) for name in kinds)
    return found


class ToldMemory:
    """A memory source that tells what a test says."""

    def __init__(self, limit_bytes: int | None = 1024 * MIB, path: str = "/the/group") -> None:
        self.limit_bytes, self.path, self.kills = limit_bytes, path, 0
        self.anon = self.shmem = self.clean = self.dirty = self.writeback = self.kernel = 0
        self.error: Exception | None = None

    def read(self) -> MemoryUse:
        if self.error is not None:
            raise self.error
        kinds = (self.anon, self.shmem, self.clean, self.dirty, self.writeback)
        return MemoryUse(self.limit_bytes, sum(kinds) + self.kernel, *kinds, self.path)

    def kill_count(self) -> int:
        return self.kills


class ToldLoaders:
    """Loaders that have counted what a test says."""

    def __init__(self) -> None:
        self.counts = LoaderCounts()

    def __call__(self) -> LoaderCounts:
        return self.counts


def recording_of(
    memory: ToldMemory, loaders: ToldLoaders | None = None, **options: object
) -> Recording:
    """A recording that samples when a phase or a mark asks for it, and at the end."""
    sampler = Sampler(memory, loaders=loaders or ToldLoaders())
    held = Recording(sampler, **{"interval": RARELY, **options})  # type: ignore[arg-type]
    held._ledger._held.interval_ns = 1000  # so that each phase and mark is old enough for a sample
    return held
