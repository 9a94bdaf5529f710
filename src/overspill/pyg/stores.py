"""PyTorch Geometric's stores over a dataset, for its own loaders.

``NodeLoader((DatasetFeatureStore(ds), DatasetGraphStore(ds)), node_sampler=NeighborSampler(...))``
is PyG's own loader, sampling and gathering out of core. PyG gathers no edge arrays from stores.
"""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.data import FeatureStore, GraphStore
from torch_geometric.data.feature_store import TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.typing import EdgeTensorType, FeatureTensorType

from overspill.errors import InputError
from overspill.graph.dataset import Dataset
from overspill.graph.reading.array_keys import ArrayKey, record_of
from overspill.pyg.arrays import Names, chosen_arrays
from overspill.pyg.sampling import is_hetero
from overspill.tensors.batches import allocate_in_worker
from overspill.tensors.dtypes import torch_dtype

_READ_ONLY = "build another dataset"


class DatasetFeatureStore(FeatureStore):  # type: ignore[misc] # PyG has no types
    """The node arrays of a dataset as PyG's feature store, read-only.

    It pickles by path. A worker's rows are made in shared memory.

    Args:
        dataset: The dataset.
        features: Names of the arrays to offer, or such lists by node type; None for all.

    Raises:
        InputError: An unknown name or type.
    """

    def __init__(self, dataset: Dataset, features: Names = None) -> None:
        super().__init__()
        # Past its __setattr__, which reads names as those of tensors.
        self.__dict__["_dataset"], self.__dict__["_features"] = dataset, features
        self.__dict__["_keys"] = chosen_arrays(dataset, features, edge_features=[])

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """What there is, without indices; of one node and one edge type without a group."""
        hetero = is_hetero(self._dataset)
        return [TensorAttr(type if hetero else None, name) for type, name in self._keys]

    def _get_tensor(self, attr: TensorAttr) -> FeatureTensorType | None:
        key = self._key(attr)
        if key is None:
            return None
        ids = _ids(attr.index, record_of(self._dataset, key).shape[0])
        if ids is None:
            return self._dataset.features(key[1], str(key[0]))
        record = record_of(self._dataset, key)
        out = allocate_in_worker((len(ids), *record.shape[1:]), torch_dtype(record.dtype))
        return self._dataset.gather(key[1], ids, str(key[0]), out=out)

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        key = self._key(attr)
        return None if key is None else record_of(self._dataset, key).shape

    def _put_tensor(self, tensor: FeatureTensorType, attr: TensorAttr) -> bool:
        what = f"{attr.attr_name!r} of {tuple(tensor.shape)}"
        raise InputError(f"a dataset's arrays cannot be written: {what}", remedy=_READ_ONLY)

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        what = repr(attr.attr_name)
        raise InputError(f"a dataset's arrays cannot be removed: {what}", remedy=_READ_ONLY)

    def _key(self, attr: TensorAttr) -> ArrayKey | None:
        group = attr.group_name
        if not isinstance(group, str):
            group = self._dataset.node_types[0]
        key = group, str(attr.attr_name)
        return key if key in self._keys else None

    def __repr__(self) -> str:
        return f"DatasetFeatureStore({self._dataset}, arrays={[name for _, name in self._keys]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return DatasetFeatureStore, (self._dataset, self._features)


class DatasetGraphStore(GraphStore):  # type: ignore[misc] # PyG has no types
    """The edges of a dataset as PyG's graph store, read-only: mapped, by destination.

    It pickles by path. PyG asks it for sizes and, where links are given by their type alone, for
    all edges as pairs: 16 bytes an edge. Of one node and one edge type PyG knows no such way: give
    its `LinkLoader` the pair ``(None, edge_label_index)``.

    Args:
        dataset: The dataset.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self._dataset = dataset

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """The edge types; the one of a dataset of one node and one edge type has no name."""
        hetero = is_hetero(self._dataset)
        return [
            EdgeAttr(type if hetero else None, EdgeLayout.CSC, size=self._size(type))
            for type in self._dataset.edge_types
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> EdgeTensorType | None:
        type = edge_attr.edge_type or self._dataset.edge_types[0]
        if type not in self._dataset.edge_types or edge_attr.layout != EdgeLayout.CSC:
            return None
        held = self._dataset.topology(type)
        return held.indices.to(torch.int64), held.indptr

    def _put_edge_index(self, edge_index: EdgeTensorType, edge_attr: EdgeAttr) -> bool:
        what = f"{len(edge_index[0])} of type {edge_attr.edge_type}"
        raise InputError(f"a dataset's edges cannot be written: {what}", remedy=_READ_ONLY)

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        what = str(edge_attr.edge_type)
        raise InputError(f"a dataset's edges cannot be removed: {what}", remedy=_READ_ONLY)

    def _size(self, type: Any) -> tuple[int, int]:
        source, _, target = type
        return self._dataset.node_record(source).count, self._dataset.node_record(target).count

    def __repr__(self) -> str:
        return f"DatasetGraphStore({self._dataset})"

    def __reduce__(self) -> tuple[Any, ...]:
        return DatasetGraphStore, (self._dataset,)


def _ids(index: Any, count: int) -> torch.Tensor | None:
    """Row ids of PyG's index; None for all rows."""
    if index is None or (isinstance(index, slice) and index == slice(None)):
        return None
    if isinstance(index, slice):
        return torch.arange(*index.indices(count), device="cpu")
    if isinstance(index, int):
        return torch.tensor([index], device="cpu")
    held = torch.as_tensor(index, device="cpu")
    return held.nonzero().view(-1) if held.dtype == torch.bool else held
