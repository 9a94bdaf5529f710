"""What every part of a build works with: the spec, the plan, the directory, progress, notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.plan import BuildPlan
from overspill.build.progress import Progress
from overspill.build.spec import BuildSpec
from overspill.storage.records import FileRecord, numpy_view_dtype


@dataclass(frozen=True)
class BuildContext:
    """One build under way.

    Attributes:
        spec: What to build.
        plan: Sizes of all buffers.
        directory: The claimed output directory.
        progress: Receives phases.
    """

    spec: BuildSpec
    plan: BuildPlan
    directory: BuildDirectory
    progress: Progress

    def step(self, name: str, act: Callable[[], Any]) -> Any:
        """Do a step, or take its result where an earlier process finished it.

        Args:
            name: Of the step, used once a build.
            act: Does it; its files are complete when it returns, and its result is JSON.
        """
        result = self.directory.finished(name)
        if result is None:
            result = act()
            self.directory.finish(name, result)
        return result

    def pieces(self, record: FileRecord) -> Iterator[npt.NDArray[Any]]:
        """Read one of the build's own array files in order, a piece at a time."""
        return stored_pieces(self.directory.path, record, most_bytes=self.plan.copy_bytes)


def stored_pieces(
    directory: Path, record: FileRecord, *, most_bytes: int
) -> Iterator[npt.NDArray[Any]]:
    """Yield the rows of an array file in order, in fresh arrays of about `most_bytes`."""
    dtype = numpy_view_dtype(record.dtype)
    items = int(np.prod(record.shape[1:], dtype=np.int64))
    if not items or not record.shape[0]:
        return
    rows = max(1, most_bytes // (items * dtype.itemsize))
    payload = record.shape[0] * items * dtype.itemsize
    with (directory / record.path).open("rb", buffering=0) as file:
        file.seek(record.nbytes - payload)
        for first in range(0, record.shape[0], rows):
            count = min(rows, record.shape[0] - first) * items
            yield np.fromfile(file, dtype, count).reshape(-1, *record.shape[1:])
