"""What files of the input hold, told by a machine that has them: headers, or counts of a pass.

Each function runs as a task (`tasks`). Headers are read alone where they tell enough; else the
edges of a split once, a chunk at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from overspill.build.inputs import out_of_range
from overspill.build.parting.split_spec import SplitSpec, Window
from overspill.build.parting.stage_split import (
    CHUNK_EDGES,
    Ids,
    applied_policies,
    opened_window,
    require_range,
)
from overspill.build.passes.partition import UNBOUNDED
from overspill.build.pipeline import prefetched
from overspill.build.readers.edges import open_edges, sniff_format
from overspill.build.readers.features import open_features
from overspill.build.readers.source import SourceFile
from overspill.build.readers.windows import units_of
from overspill.build.spec import EdgeSpec
from overspill.cluster.building.tasks import Send


@dataclass(frozen=True)
class EdgeFile:
    """What the header of a file of edges tells.

    Attributes:
        kind: Its format.
        count: Edges, where that is told.
        units: Edges of each part that can be read alone; None: the whole file, or single edges.
        text: Whether ids are text.
        arrays: Array of further columns -> dtype and row shape.
    """

    kind: str
    count: int | None
    units: tuple[int, ...] | None
    text: bool
    arrays: dict[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class ArrayFile:
    """What the header of a .npy file tells.

    Attributes:
        dtype: A name of `STORED_DTYPES`.
        shape: The whole shape.
        in_order: Whether its rows lie one after another.
    """

    dtype: str
    shape: tuple[int, ...]
    in_order: bool


def describe_edges(files: tuple[tuple[Window, EdgeSpec], ...], *, send: Send) -> list[EdgeFile]:
    """Read the headers of files of edges.

    Raises:
        InputError: One is no file of edges.
    """
    found = []
    for number, (window, spec) in enumerate(files):
        source = SourceFile.check(window.path)
        reader = open_edges(source, spec)
        arrays = {}
        for name, array in spec.arrays.items():
            if not array.paths:
                rows = reader.rows(array.columns)
                arrays[name] = (rows.dtype, rows.row_shape)
        kind = sniff_format(source)
        units = units_of(reader)
        found.append(EdgeFile(kind, reader.count, units, any(reader.text), arrays))
        send(number)
    return found


def describe_arrays(files: tuple[tuple[str, str], ...], *, send: Send) -> list[ArrayFile]:
    """Read the headers of .npy files, by path and name.

    Raises:
        InputError: One is no array whose rows can be stored.
    """
    send(0)
    found = []
    for path, name in files:
        file = open_features(path, name)
        in_order = not file.fortran or len(file.shape) == 1
        found.append(ArrayFile(file.type_name, file.shape, in_order))
    return found


def count_split(spec: SplitSpec, *, send: Send) -> tuple[list[int], int, int]:
    """Read the edges of a split: how many each window has, and the largest source and target.

    Raises:
        InputError: An id is negative, or too large.
    """
    counts, largest, done = [], [-1, -1], 0
    for window in spec.windows:
        reader, count = opened_window(window, spec), 0
        for chunk in prefetched(reader.chunks(CHUNK_EDGES)):
            for end, ids in enumerate((chunk.sources, chunk.targets)):
                held = cast("Ids", ids)
                if held.min(initial=0) < 0 or held.max(initial=0) >= UNBOUNDED:
                    wrong = int(np.argmax((held < 0) | (held >= UNBOUNDED)))
                    raise out_of_range(reader, chunk, wrong, end, None)
                largest[end] = max(largest[end], int(held.max(initial=-1)))
            count += len(chunk.sources)
            send(done + chunk.bytes_done)
        counts.append(count)
        done += reader.nbytes
    return counts, largest[0], largest[1]


def count_entering(
    spec: SplitSpec, shift: int, ranges: tuple[tuple[int, int], ...], *, send: Send
) -> list[Ids]:
    """Count the edges of a split by the node whose row they are in: its target, of "csc".

    Args:
        spec: The split.
        shift: How many low bits of a node are left out where ranges of nodes are counted.
        ranges: First node and end of those ranges whose nodes are counted one by one; none: all
            nodes are counted, by ranges.
        send: Called with the bytes read so far.

    Returns:
        Edges of each range; or, of each of `ranges`, those of each of its nodes.
    """
    counted = spec.targets if "csc" in spec.layouts else spec.sources
    wanted = ranges or ((0, (max(0, counted.count - 1) >> shift) + 1),)
    found = [np.zeros(last - first, np.int64) for first, last in wanted]
    done = 0
    for window in spec.windows:
        reader = opened_window(window, spec)
        for chunk in prefetched(reader.chunks(CHUNK_EDGES)):
            require_range(spec, reader, chunk)
            edges = applied_policies(spec, chunk, None)
            nodes = edges.targets if "csc" in spec.layouts else edges.sources
            for held, (first, last) in zip(found, wanted, strict=True):
                places = (nodes if ranges else nodes >> shift) - first
                inside = places[(places >= 0) & (places < last - first)]
                held += np.bincount(inside, minlength=last - first)
            send(done + chunk.bytes_done)
        done += reader.nbytes
    return found
