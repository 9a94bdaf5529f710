"""The file of a partition book: where ranges of nodes end, or the part of each node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from overspill.build.parting.split_owners import Owners, RangeOwners
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import FileRecord, require_inside


def book_path(node_type: str) -> str:
    """Where the book of a node type lies, relative to the partition."""
    relative = f"books/{node_type}.safetensors"
    require_inside(relative)
    return relative


def table_dtype(num_parts: int) -> np.dtype[Any]:
    """The narrowest type that holds the number of any part."""
    return np.min_scalar_type(num_parts - 1)


def write_book(path: Path, owners: Owners, *, num_parts: int, record_path: str) -> FileRecord:
    """Write the book of a node type, durably.

    Args:
        path: The file; nothing is there.
        owners: Which part has which node.
        num_parts: How many parts there are.
        record_path: `book_path`, for the record.

    Raises:
        DiskRefusedError: The disk refused.
    """
    ranges = isinstance(owners, RangeOwners)
    dtype = np.dtype(np.int64) if ranges else table_dtype(num_parts)
    shape = (num_parts if ranges else owners.count,)
    with ArrayWriter(path, dtype=dtype.name, shape=shape, record_path=record_path) as writer:
        if isinstance(owners, RangeOwners):
            writer.append(owners.bounds[1:])
        else:
            for parts, _ in owners.runs(None, 1):
                writer.append(parts.astype(dtype))
    return writer.result
