"""The array that rows are moved into, the memory that may take, and what can be wrong with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from overspill.build.directory import BuildDirectory
from overspill.build.moving.row_blocks import SpoolLimits
from overspill.build.plan import BuildPlan
from overspill.errors import InputError
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import STORED_DTYPES, FileRecord


class RepeatedPositionError(InputError):
    """Two rows have one position.

    Args:
        position: Where both should go.
        rows: Both rows, counted from 0 in the order of the input; None where nothing kept track.
    """

    def __init__(self, position: int, rows: tuple[int, int] | None = None) -> None:
        told = "two rows" if rows is None else f"rows {rows[0]} and {rows[1]}"
        super().__init__(
            f"{told} have the same position, {position}",
            value=str(position),
            remedy="give each row a position of its own",
        )
        self.position = position
        self.rows = rows


class MissingPositionError(InputError):
    """Positions have no row.

    Args:
        position: The first of them.
        missing: How many there are.
    """

    def __init__(self, position: int, missing: int = 1) -> None:
        super().__init__(
            f"{missing} positions have no row, {position} first",
            value=str(position),
            remedy="give a row for each position, or a value to fill it with",
        )
        self.position, self.missing = position, missing


@dataclass(frozen=True)
class RowOutput:
    """The array that rows become, and what making it may take.

    Attributes:
        directory: The build's directory.
        plan: Sizes of buffers.
        path: Where the array goes in the directory.
        dtype: A name of `STORED_DTYPES`.
        shape: The whole shape; the first axis counts the rows.
        budget_bytes: Memory for all buffers of the call; None for the share of `plan`.
    """

    directory: BuildDirectory
    plan: BuildPlan
    path: str
    dtype: str
    shape: tuple[int, ...]
    budget_bytes: int | None = None

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes a row."""
        return math.prod(self.shape[1:]) * STORED_DTYPES[self.dtype][1]

    @property
    def memory_bytes(self) -> int:
        """Memory for all buffers."""
        if self.budget_bytes is not None:
            return self.budget_bytes
        plan = self.plan
        return (plan.ranges + plan.spare_blocks) * plan.block_bytes + 3 * plan.copy_bytes

    @property
    def bucket_rows(self) -> int:
        """Rows that are put in place at a time: two buckets, and a mark a row, in half of it."""
        return max(1, self.memory_bytes // 2 // (2 * self.row_bytes + 1))

    @property
    def piece_bytes(self) -> int:
        """Size of what is read ahead, three of which are alive."""
        return max(1, self.memory_bytes // 32)

    def spool_limits(self, level: int) -> SpoolLimits:
        """Sizes of a spool; from the second level on, the buckets are in memory too."""
        return SpoolLimits(
            self.plan.ranges,
            self.plan.block_bytes,
            self.memory_bytes // 4 * (1 if level else 2),
            self.bucket_rows,
        )

    def scratch(self, kind: str) -> Path:
        """Where a scratch file of this array goes."""
        # In directories like the array's own: the parts of its path make too long a name together.
        return self.directory.file(f"scratch/{self.path}.{kind}")

    def open(self) -> ArrayWriter:
        """A writer of the array."""
        return self.directory.array(self.path, dtype=self.dtype, shape=self.shape)


@dataclass(frozen=True)
class ScatterResult:
    """What a scatter did.

    Attributes:
        record: The array file.
        missing: Rows that nothing was given for, filled.
        dropped: Rows that were given the position -1.
    """

    record: FileRecord
    missing: int
    dropped: int
