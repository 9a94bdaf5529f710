"""NeighborSampler: this library's sampling as PyTorch Geometric's `BaseSampler`."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
)
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.sampler.neighbor_sampler import node_sample

from overspill.errors import InputError
from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.sampling.spec import SampleLimit
from overspill.graph.streams import stream_key
from overspill.pyg.arguments import require_dataset
from overspill.pyg.edge_files import EdgeNumbers, keeps_edge_ids
from overspill.pyg.negatives import KeyedNegatives, chosen_negatives
from overspill.pyg.options import FanOuts, SamplingOptions
from overspill.pyg.sampling import GraphSampling, Output
from overspill.pyg.tasks import LinkTask
from overspill.tensors.batches import allocate_in_worker

_NODES, _LINKS, _NEGATIVES = 1, 2, 3  # streams apart from each other


class NeighborSampler(BaseSampler):  # type: ignore[misc] # PyG has no types
    """Samples a dataset within PyG's own `NodeLoader` and `LinkLoader`.

    Features come from `DatasetFeatureStore` and `DatasetGraphStore`, or from a `Data` object of the
    same graph. ``edge`` of the output are the edges' numbers in the input where the dataset keeps
    edge ids, so that they fit edge attributes of such a `Data`; else places in the dataset's order.

    Draws follow the seed that torch gives the workers of an epoch (so `torch.manual_seed`, or the
    loader's `generator`), and the batch's input ids: the same whatever the number of workers, from
    one up. With persistent workers torch gives no new seed: a batch of the same inputs is then the
    same in every epoch. Without workers each batch takes its seed from torch's generator.

    It pickles by path. Buffers are made in each process; threads take turns. Nothing is planned:
    memory is that of a batch and the sampler's buffers, see `overspill.graph.sampling.sampler`.

    Args:
        data: The dataset, with the layout "csc".
        num_neighbors: As for `NeighborLoader`.
        subgraph_type: As for `NeighborLoader`.
        replace: As for `NeighborLoader`.
        disjoint: As for `NeighborLoader`.
        temporal_strategy: As for `NeighborLoader`.
        time_attr: As for `NeighborLoader`.
        weight_attr: As for `NeighborLoader`.
        limit: Refuse batches with more nodes or edges (NoRoomError); None for no limit.

    Raises:
        InputError: Bad fan-outs, unknown names; no layout "csc", or a part of a partition.
    """

    def __init__(  # noqa: PLR0913 - PyG's own signature
        self,
        data: Dataset,
        num_neighbors: FanOuts,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        *,
        limit: SampleLimit | None = None,
    ) -> None:
        require_dataset(data, "NeighborSampler")
        options = SamplingOptions(
            num_neighbors=num_neighbors,
            replace=replace,
            subgraph_type=subgraph_type,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            weight_attr=weight_attr,
        )
        self._bidirectional = options.subgraph == "bidirectional"
        self._time_attr = time_attr
        self._sampling = GraphSampling(data, options.spec(data), limit)
        self._numbers: dict[EdgeType, EdgeNumbers] = {}
        self._negatives: tuple[NegativeSampling, KeyedNegatives] | None = None

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> Output:
        """Sample the neighbourhood of nodes.

        Args:
            index: The nodes, as PyG's `NodeLoader` gives them.

        Raises:
            InputError: A node lies outside the graph, or a weight is none.
            StaleFileError: A file of the dataset changed.
        """
        base = _base_seed()
        key = stream_key(base, _NODES, _name(index.input_id, index.node))
        with torch.device("cpu"):
            return self._finished(node_sample(self._typed(index), partial(self._sample, key=key)))

    def sample_from_edges(
        self,
        index: EdgeSamplerInput,
        neg_sampling: NegativeSampling | None = None,
        **_: Any,
    ) -> Output:
        """Sample the neighbourhood of links and of negatives.

        Args:
            index: The links, as PyG's `LinkLoader` gives them.
            neg_sampling: How negatives are drawn, or None.

        Raises:
            InputError: An end lies outside the graph, or a weight is none.
            StaleFileError: A file of the dataset changed.
        """
        base, name = _base_seed(), _name(index.input_id, torch.stack([index.row, index.col]))
        edge_type = index.input_type or self._sampling.dataset.edge_types[0]
        task = LinkTask(edge_type, self._keyed(edge_type, neg_sampling), self._time_attr)
        sample = partial(self._sample, key=stream_key(base, _LINKS, name))
        drawn = stream_key(base, _NEGATIVES, name)
        with torch.device("cpu"):
            return self._finished(task.sample_links(index, self._sampling, sample, drawn))

    @property
    def edge_permutation(self) -> None:
        """None: edges are given as they are numbered already."""
        return None

    def __repr__(self) -> str:
        return f"NeighborSampler({self._sampling.dataset}, {self._sampling.spec})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self._sampling, self._bidirectional, self._time_attr)

    def _typed(self, index: NodeSamplerInput) -> NodeSamplerInput:
        dataset, type = self._sampling.dataset, index.input_type
        if self._sampling.hetero and type is None:
            raise InputError(
                "the nodes to sample from have no type, and the dataset has several",
                remedy=f"pass input_nodes=({dataset.node_types[0]!r}, ids)",
            )
        if self._sampling.hetero or type is None:
            return index
        return NodeSamplerInput(index.input_id, index.node, index.time)

    def _sample(self, seeds: Any, times: Any = None, *, key: np.uint64) -> Output:
        return self._sampling.sample(seeds, times, key=key, new=allocate_in_worker)

    def _keyed(self, edge_type: EdgeType, wanted: Any) -> KeyedNegatives | None:
        if wanted is None:
            return None
        # Weights are summed once, not for each batch.
        if self._negatives is None or self._negatives[0] is not wanted:
            made = chosen_negatives(self._sampling.dataset, edge_type, wanted, None)
            assert made is not None
            self._negatives = wanted, made
        return self._negatives[1]

    def _finished(self, out: Output) -> Output:
        if self._bidirectional:
            out = out.to_bidirectional()
        if isinstance(out.edge, dict):
            out.edge = {
                type: None if places is None else self._numbered(type, places)
                for type, places in out.edge.items()
            }
        elif out.edge is not None:
            out.edge = self._numbered(self._sampling.dataset.edge_types[0], out.edge)
        return out

    def _numbered(self, edge_type: EdgeType, places: torch.Tensor) -> torch.Tensor:
        dataset = self._sampling.dataset
        if not keeps_edge_ids(dataset, edge_type):
            return places
        held = self._numbers.get(edge_type)
        if held is None:
            held = self._numbers[edge_type] = EdgeNumbers(dataset, edge_type)
        out = allocate_in_worker((places.numel(),), torch.int64)
        held.write(places.numpy(), out.numpy())
        return out


def _remade(sampling: GraphSampling, bidirectional: bool, time_attr: str | None) -> NeighborSampler:
    made = NeighborSampler.__new__(NeighborSampler)
    made._sampling, made._bidirectional, made._time_attr = sampling, bidirectional, time_attr
    made._numbers, made._negatives = {}, None
    return made


def _base_seed() -> int:
    worker = get_worker_info()
    if worker is not None:
        return int(worker.seed) - int(worker.id)
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def _name(input_id: torch.Tensor | None, inputs: torch.Tensor) -> int:
    """A number for a batch, by its inputs."""
    held = inputs if input_id is None else input_id
    digest = hashlib.blake2b(held.contiguous().numpy().tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
