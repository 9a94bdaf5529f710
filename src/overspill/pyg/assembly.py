"""Puts a sampled neighbourhood and its rows together, as PyTorch Geometric's loaders do.

In a worker everything is made in shared memory, so that handing it over copies nothing; where
batches are spilled, what does not fit there is made in a file instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import get_worker_info
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.reading.array_keys import ArrayKey, Owner, record_of
from overspill.pyg.arrays import arrays_of
from overspill.pyg.edge_files import EdgeNumbers, keeps_edge_ids
from overspill.pyg.sampling import Output
from overspill.tensors.batches import allocate_in_worker
from overspill.tensors.dtypes import torch_dtype

Fill = Callable[[ArrayKey, torch.Tensor, torch.Tensor], None]


class Assembly:
    """Makes batches of a dataset's types; it does not pickle, each process makes its own.

    Args:
        dataset: The dataset.
        keys: The arrays that a batch holds.
    """

    def __init__(self, dataset: Dataset, keys: Sequence[ArrayKey]) -> None:
        self._dataset, self._keys = dataset, keys
        self._numbers: dict[EdgeType, EdgeNumbers] = {}

    def assemble(self, out: Output, fill: Fill) -> Data | HeteroData:
        """Make the batch of a sampled neighbourhood.

        Args:
            out: What was sampled; ``edge`` are places in the dataset's order.
            fill: Copies the rows of an array: its key, the ids, the tensor to fill.

        Raises:
            StaleFileError: A file of the dataset was cut, replaced or removed.
            MappingError: The disk refused to read.
            NoRoomError: It does not fit in /dev/shm.
        """
        if isinstance(out, HeteroSamplerOutput):
            return self._hetero(out, fill)
        data = Data()
        (node_type,), (edge_type,) = self._dataset.node_types, self._dataset.edge_types
        self._fill_edges(data, edge_type, out, fill)
        self._fill_nodes(data, node_type, out.node, out.batch, fill)
        if out.num_sampled_nodes is not None:
            data.num_sampled_nodes = out.num_sampled_nodes
            data.num_sampled_edges = out.num_sampled_edges
        _keep_originals(data, out.orig_row, out.orig_col)
        return data

    def _hetero(self, out: HeteroSamplerOutput, fill: Fill) -> HeteroData:
        data = HeteroData()
        for type, nodes in out.node.items():
            trees = None if out.batch is None else out.batch.get(type)
            self._fill_nodes(data[type], type, nodes, trees, fill)
        for edge_type, row in out.row.items():
            one = SamplerOutput(
                node=None,
                row=row,
                col=out.col[edge_type],
                edge=None if out.edge is None else out.edge.get(edge_type),
            )
            self._fill_edges(data[edge_type], edge_type, one, fill)
            if out.orig_row is not None and out.orig_col is not None:
                _keep_originals(data[edge_type], out.orig_row[edge_type], out.orig_col[edge_type])
        if out.num_sampled_nodes is not None:
            data.set_value_dict("num_sampled_nodes", out.num_sampled_nodes)
            data.set_value_dict("num_sampled_edges", out.num_sampled_edges or {})
        return data

    def _fill_nodes(
        self, store: Any, type: str, nodes: torch.Tensor, trees: torch.Tensor | None, fill: Fill
    ) -> None:
        self._fill_rows(store, type, nodes, fill)
        store.n_id = hand_over(nodes)
        store.num_nodes = nodes.numel()
        if trees is not None:
            store.batch = hand_over(trees)

    def _fill_edges(self, store: Any, edge_type: EdgeType, out: SamplerOutput, fill: Fill) -> None:
        store.edge_index = _edge_index(out.row, out.col)
        if out.edge is None:  # a bidirectional graph of several types: an edge stands for two
            return
        places = out.edge
        self._fill_rows(store, edge_type, places, fill)
        if not keeps_edge_ids(self._dataset, edge_type):
            store.e_id = hand_over(places)
            return
        numbers = self._numbers.get(edge_type)
        if numbers is None:
            numbers = self._numbers[edge_type] = EdgeNumbers(self._dataset, edge_type)
        store.e_id = allocate_in_worker((places.numel(),), torch.int64)
        numbers.write(places.numpy(), store.e_id.numpy())

    def _fill_rows(self, store: Any, owner: Owner, ids: torch.Tensor, fill: Fill) -> None:
        for name in arrays_of(self._keys, owner):
            key = owner, name
            record = record_of(self._dataset, key)
            rows = allocate_in_worker((ids.numel(), *record.shape[1:]), torch_dtype(record.dtype))
            fill(key, ids, rows)
            store[name] = rows


def hand_over(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it can be handed over as it is; in a worker else a shared copy."""
    if get_worker_info() is None or not tensor.numel():
        return tensor
    if tensor.is_shared():  # type: ignore[no-untyped-call]
        return tensor
    out = allocate_in_worker(tuple(tensor.shape), tensor.dtype)
    return out.copy_(tensor)


def _edge_index(row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
    ends = row._base
    whole = ends is not None and ends is col._base and ends.shape == (2, row.numel())
    if whole and row.data_ptr() <= col.data_ptr():
        return hand_over(ends)  # type: ignore[arg-type] # it is the two rows
    out = allocate_in_worker((2, row.numel()), torch.int64)
    return torch.stack([row, col], out=out)


def _keep_originals(store: Any, row: torch.Tensor | None, col: torch.Tensor | None) -> None:
    if row is not None and col is not None:
        store._orig_edge_index = _edge_index(row, col)
