"""What every part of a build works with: the spec, the plan, the directory, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.moving.row_sources import ArrayRows
from overspill.build.plan import BuildPlan
from overspill.build.progress import Progress
from overspill.build.spec import BuildSpec
from overspill.storage.records import FileRecord


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
        """Read one of the build's own array files in order; a piece lasts until the third after."""
        rows = ArrayRows(self.directory.path / record.path, record)
        return rows.pieces(self.plan.copy_bytes)
