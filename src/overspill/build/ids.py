"""Make any int64 ids dense: sort the distinct ones out of core, then translate by rank.

Bottleneck: sorting two ids an edge, then one or two cache misses a lookup. The sorted ids become
an array file of the dataset (dense -> raw) and are looked up through a private, read-only mapping
of it: page cache, not anonymous memory, however many ids there are. Limits: once the ids outgrow
the page cache, lookups go at the device's speed for random reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.plan import BuildPlan
from overspill.build.runs import RunCollector, SortedRuns
from overspill.errors import FormatError
from overspill.kernels.translate import rank_ids
from overspill.storage.arrays import ArrayWriter, map_array
from overspill.storage.records import FileRecord

Ids = npt.NDArray[np.int64]
_SPANS = 1 << 18


def store_distinct_ids(
    numbers: Iterable[Ids], directory: BuildDirectory, *, path: str, plan: BuildPlan
) -> FileRecord:
    """Write the distinct ids among `numbers`, in order, as an array file.

    Args:
        numbers: Ids in any order, in pieces; read once.
        directory: The build's directory.
        path: The array file's place in it.
        plan: Sizes of runs and windows.

    Returns:
        The file's record; its only dimension is the number of distinct ids.
    """
    with SortedRuns(directory.file("scratch/ids.runs"), dtype=np.int64, unique=True) as runs:
        collector = RunCollector(runs, plan.run_ids, dtype=np.int64, unique=True)
        for piece in numbers:
            collector.add(piece)
        collector.finish()
        # How many there are is known only after the merge, and a header comes first.
        with SortedRuns(directory.file("scratch/ids.merged"), dtype=np.int64, unique=True) as once:
            count = 0
            for piece in runs.merged(plan.run_ids):
                once.append(piece)
                count += len(piece)
            return _write(once, directory, path, count, plan)


def _write(
    once: SortedRuns, directory: BuildDirectory, path: str, count: int, plan: BuildPlan
) -> FileRecord:
    target = directory.file(path)
    directory.file(path + ".partial")
    with ArrayWriter(target, dtype="int64", shape=(count,), record_path=path) as writer:
        for piece in once.in_order(plan.run_ids):
            writer.append(piece)
    if writer.result is None:
        raise FormatError(f"{target} was not finished", path=str(target))
    return writer.result


@dataclass(frozen=True)
class IdTranslator:
    """Raw ids to ranks, over the mapped file of the sorted ids.

    Attributes:
        ids: The mapped ids.
        spans: See `overspill.kernels.translate.rank_ids`.
        shift: Width of a span, as a power of two.
    """

    ids: Ids
    spans: Ids
    shift: int

    @classmethod
    def open(cls, path: Path, record: FileRecord) -> IdTranslator:
        """Map the ids and index them; takes 2 MiB whatever their number."""
        _, ids = map_array(path, record)
        if len(ids) == 0:
            return cls(ids, np.zeros(1, np.int64), 0)
        lowest, reach = int(ids[0]), int(ids[-1]) - int(ids[0])
        shift = max(0, reach.bit_length() - _SPANS.bit_length() + 1)
        starts = [lowest + (span << shift) for span in range((reach >> shift) + 1)]
        spans = np.searchsorted(ids, np.array(starts, np.int64))
        return cls(ids, np.append(spans, len(ids)).astype(np.int64), shift)

    def translate(self, raw: Ids) -> Ids:
        """The dense ids of raw ids, all of which are known."""
        ranks = np.empty(len(raw), np.int64)
        if len(raw) and rank_ids(raw, self.ids, self.spans, self.shift, ranks) < len(raw):
            raise FormatError("an id appeared that the first reading of the edges did not show")
        return ranks
