"""Compressed sparse rows from edges in memory or on disk, in place of a sort.

Bottleneck and algorithm: see `overspill.graph.csr_fill`. Limits: one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from overspill.build.progress import Progress
from overspill.errors import InputError, SettingsError
from overspill.graph.csr_fill import Edges, Job, Outputs, fill
from overspill.graph.csr_homes import Homes, plan_homes
from overspill.graph.csr_inputs import (
    Items,
    checked_count,
    checked_ids,
    id_reader,
    position_items,
    weight_items,
)
from overspill.graph.csr_plan import Shape
from overspill.graph.progress_bar import event_listener
from overspill.tensors.layouts import tensor_over
from overspill.units import parse_bytes

_INT32_IDS = 2**31


class CSR(NamedTuple):
    """Compressed sparse rows: ``indptr, indices, *_ = build_csr(...)``.

    Attributes:
        indptr: int64 (num_rows + 1,), where each row begins and ends.
        indices: The columns, row after row: int32 (edges,), or int64 where an id does not fit.
        edge_ids: int64 (edges,), the position of each edge in the input; None unless asked for.
        weights: (edges, ...), as given and in the order of `indices`; None where none were given.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    edge_ids: torch.Tensor | None
    weights: torch.Tensor | None

    def __repr__(self) -> str:
        # Reads no data: a tensor's own repr would fault pages in.
        extra = "".join(
            f", {name}={held.dtype}"
            for name, held in (("edge_ids", self.edge_ids), ("weights", self.weights))
            if held is not None
        )
        rows, edges = len(self.indptr) - 1, len(self.indices)
        return f"CSR(num_rows={rows}, num_edges={edges}, indices={self.indices.dtype}{extra})"


def build_csr(  # noqa: PLR0913 - options, keyword-only
    row: torch.Tensor,
    col: torch.Tensor,
    num_rows: int,
    *,
    num_cols: int | None = None,
    edge_ids: bool = False,
    weights: torch.Tensor | None = None,
    sort_within_row: bool = True,
    memory_limit: str | int | None = None,
    progress: bool | Callable[[dict[str, Any]], None] | None = None,
) -> CSR:
    """Arrange edges by row: counts, columns in the order of their rows, and what goes with them.

    Duplicates and self loops stay. Outputs go where ``allocate_preshared(random_access=True)``
    says; where that is the disk, or outputs and scratch exceed `memory_limit`, the edges are
    partitioned in the output files and then arranged band by band, in order.

    Cost: the inputs are read three times, the rows once more for each level of very uneven rows and
    where there are files; in files the indices and what goes with them are written twice and read
    once. In memory the peak beyond the inputs is the outputs, 2 bytes an edge (4 with more than 65
    million rows) and some MiB: for int32 indices three quarters of one int64 array of the edges,
    and 8 bytes a row. A row of more than an 800th of all edges takes as much again as it has in
    the outputs, where something goes with the edges and rows are sorted. In files the peak is
    `memory_limit`, or a quarter of the headroom and at most 1 GiB. The very first call compiles its
    kernels: seconds, and about 100 MiB. A small graph takes the milliseconds in which the memory
    that there is is measured. One thread, without the GIL; any number of calls may run at once,
    also over the same inputs, which must not be written to meanwhile.

    Args:
        row: The row of each edge, int64 or int32 (edges,), of any stride, in memory or disk-backed.
        col: The column of each edge, likewise.
        num_rows: The number of rows; trailing ones may be empty.
        num_cols: The number of columns; None takes any columns that are not negative.
        edge_ids: Whether to give the position of each edge.
        weights: (edges, ...) of any dtype that can be mapped, to be brought along.
        sort_within_row: Order each row by column; edges of one row and column keep their order.
            False: each row keeps the order of the input.
        memory_limit: The most memory beyond the inputs, such as "1GiB"; None takes what there is.
        progress: True shows a bar for each phase on stderr; or a callable that gets events
            ``{"event": "progress", "phase", "done", "total", "unit"}``, some a second.

    Returns:
        The rows. On an error nothing is left, in files neither.

    Raises:
        InputError: An id is out of range, with its position and value; not int64 or int32, not
            one-dimensional CPU tensors of one length; weights of another length.
        NoRoomError: No safe home for the outputs, or not even the smallest scratch fits.
        DiskRefusedError: The disk refused.
        UnsupportedTensorError: Weights of a quantized dtype.
        SettingsError: `memory_limit` or a setting cannot be understood.

    The method is radix partitioning with software write combining (Satish et al., SIGMOD 2010).
    """
    limit_bytes = _limit(memory_limit)
    given, carried = _given(row, col, weights, edge_ids)
    shape = _shape(given, len(row), num_rows, num_cols, carried)
    layout = _layout(shape, carried)
    plan = plan_homes(shape, tuple(array.nbytes for array in layout.values()), limit_bytes)
    with event_listener(progress) as send, Homes(plan) as homes:
        storages, columns = {}, {}
        for name, array in layout.items():
            storages[name], columns[name] = homes.output(array.shape, array.dtype, f"CSR {name}")
        steps = Progress(send)
        job = Job(shape=shape, sizes=plan.sizes, sort=sort_within_row, scratch=homes, steps=steps)
        items = tuple(columns[name] for name in carried)
        fill(job, given, Outputs(indptr=columns["indptr"], indices=columns["indices"], items=items))
        steps.end()
    return _result(storages, shape, weights)


@dataclass(frozen=True)
class _Array:
    """The shape and dtype of an output as the kernels see it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _given(
    row: torch.Tensor, col: torch.Tensor, weights: torch.Tensor | None, edge_ids: bool
) -> tuple[Edges, dict[str, Items]]:
    rows, columns = id_reader(row, "row"), id_reader(col, "col")
    if len(row) != len(col):
        raise InputError(
            f"row has {len(row)} entries and col {len(col)}: one of each makes an edge",
            column="col",
            value=str(len(col)),
            remedy="give two tensors of the same length, the ends of each edge",
        )
    carried = {}
    items = None if weights is None else weight_items(weights, len(row))
    if items is not None:
        carried["weights"] = items
    if edge_ids:
        carried["edge_ids"] = position_items()
    readers = tuple(one.read for one in carried.values())
    return Edges(rows=rows, columns=columns, items=readers), carried


def _shape(
    given: Edges, edges: int, num_rows: int, num_cols: int | None, carried: dict[str, Items]
) -> Shape:
    """What there is, once every id has been checked."""
    rows = checked_count(num_rows, "num_rows")
    limit = None if num_cols is None else checked_count(num_cols, "num_cols")
    checked_ids(given.rows, edges, limit=rows, name="row")
    largest = checked_ids(given.columns, edges, limit=limit, name="col")
    count = largest + 1 if limit is None else limit
    return Shape(
        edges=edges,
        num_rows=rows,
        num_cols=count,
        column_bytes=4 if count <= _INT32_IDS else 8,
        item_bytes=tuple(one.nbytes for one in carried.values()),
    )


def _layout(shape: Shape, carried: dict[str, Items]) -> dict[str, _Array]:
    ids = np.dtype(np.int32 if shape.column_bytes == 4 else np.int64)
    return {
        "indptr": _Array((shape.num_rows + 1,), np.dtype(np.int64)),
        "indices": _Array((shape.edges,), ids),
        **{
            name: _Array((shape.edges, items.words), items.dtype) for name, items in carried.items()
        },
    }


def _result(
    storages: dict[str, torch.UntypedStorage], shape: Shape, weights: torch.Tensor | None
) -> CSR:
    ids = torch.int32 if shape.column_bytes == 4 else torch.int64
    edges = (shape.edges,)
    numbered = storages.get("edge_ids")
    moved = storages.get("weights")
    arranged = None
    if weights is not None:
        size = tuple(weights.shape)
        arranged = (
            torch.empty(size, dtype=weights.dtype, device="cpu")
            if moved is None
            else tensor_over(moved, weights.dtype, size)
        )
    return CSR(
        tensor_over(storages["indptr"], torch.int64, (shape.num_rows + 1,)),
        tensor_over(storages["indices"], ids, edges),
        None if numbered is None else tensor_over(numbered, torch.int64, edges),
        arranged,
    )


def _limit(memory_limit: str | int | None) -> int | None:
    if memory_limit is None:
        return None
    try:
        return parse_bytes(memory_limit)
    except ValueError as error:
        raise SettingsError(
            f"memory_limit={memory_limit!r} is not a size",
            remedy='write it like "2GiB" or 1073741824',
        ) from error
