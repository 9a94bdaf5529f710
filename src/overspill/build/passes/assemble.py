"""Pass 2: turn the spool into rows, one bucket of adjacent ranges at a time, written in order.

Bottleneck: the device, then the sort. Algorithm: adjacent ranges are gathered into buckets by their
known counts, so that power-law graphs give even ones. Buckets are read and sorted side by side,
each in memory of its own, and written in order by a thread behind. A range that does not fit a
bucket is partitioned again (`rows`). Memory: the buckets.
Limits: none in edges or rows but the table of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.passes.buckets import RowOptions as RowOptions
from overspill.build.passes.rows import RowStream
from overspill.build.passes.spool import Blocks
from overspill.build.passes.workbench import Emission, Workbench
from overspill.build.pipeline import Behind
from overspill.build.plan import BuildPlan
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import FileRecord

_CONVERTED = 1 << 16


@dataclass(frozen=True)
class RowFiles:
    """What was written.

    Attributes:
        indptr: Where each row begins, int64, (rows + 1,).
        indices: The sources of each row's edges, int32 or int64, (edges,).
        edge_ids: The edges' ids, beside them, where edges have ids.
        counts: How many equal edges each stands for, int64, where they are counted.
        edges: How many edges there are.
        duplicates: How many edges were removed, or, where all are kept, repeat another one; None
            where that is not known: all are kept, and rows are not sorted.
    """

    indptr: FileRecord
    indices: FileRecord
    edge_ids: FileRecord | None
    counts: FileRecord | None
    edges: int
    duplicates: int | None

    @property
    def records(self) -> dict[str, FileRecord]:
        """The files by their names in a manifest, those that there are."""
        held = {
            "indptr": self.indptr,
            "indices": self.indices,
            "edge_ids": self.edge_ids,
            "counts": self.counts,
        }
        return {name: record for name, record in held.items() if record is not None}


class RowChoice(Protocol):
    """Which rows there are, where the others are known to be empty.

    Attributes:
        count: How many.
    """

    count: int

    def of(self, first: int, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The ends of the rows that there are, of those from `first` on; a copy."""


class RowAssembler:
    """Writes the rows of the edges in a spool.

    Args:
        directory: The build's directory, for scratch files and the result.
        plan: Memory of buckets, and how many threads sort.
        num_rows: Number of rows: of targets.
        num_columns: Number of sources; decides whether ``indices`` take 4 bytes.
        num_edges: Number of edges of the input; decides whether edge ids, below it, take 4 bytes.
        options: What becomes of the edges.
        choice: Which of the rows are written; None: all.
        on_progress: Called with the number of edges done, of those in the spool.
    """

    def __init__(  # noqa: PLR0913 (a graph has three sizes)
        self,
        directory: BuildDirectory,
        plan: BuildPlan,
        *,
        num_rows: int,
        num_columns: int,
        num_edges: int,
        options: RowOptions = RowOptions(),  # noqa: B008 (frozen)
        choice: RowChoice | None = None,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._directory, self._plan, self._options = directory, plan, options
        self._rows, self._columns, self._edges = num_rows, num_columns, num_edges
        self._on_progress, self._choice = on_progress, choice

    def write(self, blocks: Blocks, *, prefix: str) -> RowFiles:
        """Write ``<prefix>.<part>.safetensors``: indptr, indices, edge_ids and counts.

        Raises:
            DiskRefusedError: The disk refused; what was written is removed.
            ValueError: The spool was made for other options.
        """
        if blocks.has_edge_ids != self._options.edge_ids:
            raise ValueError("the spool has edge ids where the options have none, or none instead")
        if blocks.by_source and not self._options.sort_within_row:
            raise ValueError("the spool was partitioned for rows that are sorted")
        with ExitStack() as stack:
            files = self._open(stack, blocks.edges, prefix)
            writer: Behind[None] = stack.enter_context(closing(Behind("overspill-rows")))
            bench = stack.enter_context(Workbench(self._plan))
            stream = RowStream(self._directory, bench, self._options, columns=self._columns)
            emissions = stack.enter_context(closing(stream.rows(blocks, self._rows)))
            edges, duplicates = self._consume(emissions, files, writer)
        records = {name: file.result for name, file in files.items()}
        return RowFiles(
            records["indptr"],
            records["indices"],
            records.get("edge_ids"),
            records.get("counts"),
            edges,
            duplicates,
        )

    def _open(self, stack: ExitStack, edges: int, prefix: str) -> dict[str, ArrayWriter]:
        rows = self._rows if self._choice is None else self._choice.count
        sizes = {"indptr": ("int64", rows + 1), "indices": (self._type(self._columns), edges)}
        if self._options.edge_ids:
            sizes["edge_ids"] = self._type(self._edges), edges
        if self._options.duplicates == "count":
            sizes["counts"] = "int64", edges
        files = {}
        for name, (dtype, length) in sizes.items():
            path = f"{prefix}.{name}.safetensors"
            at_most = self._options.drop and name != "indptr"
            writer = self._directory.array(path, dtype=dtype, shape=(length,), at_most=at_most)
            files[name] = stack.enter_context(writer)
        return files

    def _type(self, limit: int) -> str:
        """Whether an id below the limit fits decides, never how many edges there are."""
        return "int32" if limit <= self._plan.narrow_nodes else "int64"

    def _consume(
        self, emissions: Iterator[Emission], files: dict[str, ArrayWriter], writer: Behind[None]
    ) -> tuple[int, int | None]:
        files["indptr"].append(np.zeros(1, np.int64))
        total = removed = repeats = row = 0
        known = self._options.sort_within_row or self._options.drop
        for emission in emissions:
            np.add(emission.ends, total - emission.before, out=emission.ends)
            total += len(emission.sources)
            repeats += emission.repeats
            removed += emission.repeats if self._options.drop else 0
            ends = emission.ends
            if self._choice is not None:
                ends, row = self._choice.of(row, ends), row + len(ends)
            writer.submit(_append, files, emission, ends)
            self._on_progress(total + removed)
        writer.wait()
        return total, repeats if known else None


def _append(files: dict[str, ArrayWriter], emission: Emission, ends: npt.NDArray[np.int64]) -> None:
    try:
        parts = {
            "indptr": ends,
            "indices": emission.sources,
            "edge_ids": emission.edge_ids,
            "counts": emission.counts,
        }
        for name, file in files.items():
            _append_as(file, cast("npt.NDArray[Any]", parts[name]))
    finally:
        emission.release()


def _append_as(file: ArrayWriter, numbers: npt.NDArray[Any]) -> None:
    if numbers.dtype == file.view_dtype:
        file.append(numbers)
        return
    for start in range(0, len(numbers), _CONVERTED):
        file.append(numbers[start : start + _CONVERTED].astype(file.view_dtype))
