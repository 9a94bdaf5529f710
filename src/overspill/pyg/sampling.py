"""Samples in PyTorch Geometric's form: tensors of one type, or dictionaries of them by type."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.node_ids import whole_ids
from overspill.graph.sampling.sampled import SampledNeighborhood
from overspill.graph.sampling.sampler import NeighborSampler, SampleLimit
from overspill.graph.sampling.spec import SamplingSpec

Output: TypeAlias = SamplerOutput | HeteroSamplerOutput
Seeds = torch.Tensor | Mapping[str, torch.Tensor]
Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def plain_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised tensor in this process's own memory."""
    return torch.empty(shape, dtype=dtype, device="cpu")


class GraphSampling:
    """One sampler a process, made when it is first asked; threads take turns.

    ``edge`` of its outputs holds places of edges in the dataset's order (by destination).
    It pickles without the sampler.

    Args:
        dataset: The dataset.
        spec: What to sample.
        limit: The largest neighbourhood planned for; None for no limit.
    """

    def __init__(self, dataset: Dataset, spec: SamplingSpec, limit: SampleLimit | None) -> None:
        self.dataset, self.spec, self.limit = dataset, spec, limit
        self.hetero = is_hetero(dataset)
        self.begin_anew()
        _SAMPLINGS.add(self)

    def begin_anew(self) -> None:
        """Have no sampler, and a lock that no thread holds: in a child, where its holder is not."""
        # What a thread was in the midst of at the fork is not to be gone on with.
        self._sampler: NeighborSampler | None = None
        self._turn = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphSampling, (self.dataset, self.spec, self.limit)

    def sample(
        self, seeds: Seeds, times: Seeds | None, *, key: np.uint64, new: Allocate = plain_tensor
    ) -> Output:
        """Sample the neighbourhood of seeds.

        Args:
            seeds: int64 (seeds,), or such tensors by node type.
            times: Their times, in the same form; None where there are none.
            key: The random stream.
            new: Makes the tensors of the result.

        Returns:
            The neighbourhood, without metadata; of one node and one edge type without dictionaries.

        Raises:
            InputError: A seed lies outside the graph.
            NoRoomError: It outgrew the limit.
            StaleFileError: A file of the dataset was cut, replaced or removed.
            MappingError: The disk refused to read.
        """
        with self._turn:
            if self._sampler is None:
                self._sampler = self.dataset.sampler(self.spec, limit=self.limit)
            self._sampler.check_unchanged()
            sampled = self._sampler.sample(
                _arrays(seeds), key=key, seed_times=None if times is None else _arrays(times)
            )
            return self._hetero_output(sampled, new) if self.hetero else self._output(sampled, new)

    def _output(self, sampled: SampledNeighborhood, new: Allocate) -> SamplerOutput:
        (node_type,), (edge_type,) = self.dataset.node_types, self.dataset.edge_types
        nodes, trees = self._nodes(sampled, node_type, new)
        edges, places = _edges(sampled, edge_type, new)
        counts = self._counts(sampled)
        return SamplerOutput(
            node=nodes,
            row=edges[0],
            col=edges[1],
            edge=places,
            batch=trees,
            num_sampled_nodes=counts and counts[0][node_type],
            num_sampled_edges=counts and counts[1][edge_type],
        )

    def _hetero_output(self, sampled: SampledNeighborhood, new: Allocate) -> HeteroSamplerOutput:
        followed = self.spec.num_neighbors
        nodes = {name: self._nodes(sampled, name, new) for name in self.dataset.node_types}
        edges = {
            name: _edges(sampled, name, new) for name in self.dataset.edge_types if name in followed
        }
        counts = self._counts(sampled)
        return HeteroSamplerOutput(
            node={name: held[0] for name, held in nodes.items()},
            row={name: ends[0] for name, (ends, _) in edges.items()},
            col={name: ends[1] for name, (ends, _) in edges.items()},
            edge={name: places for name, (_, places) in edges.items()},
            batch=_trees(nodes) if self.spec.in_trees else None,
            num_sampled_nodes=counts and counts[0],
            num_sampled_edges=counts and counts[1],
        )

    def _counts(
        self, sampled: SampledNeighborhood
    ) -> tuple[dict[str, list[int]], dict[EdgeType, list[int]]] | None:
        # PyG tells none of an induced subgraph: its edges belong to no hop.
        if self.spec.induced:
            return None
        return dict(sampled.nodes_per_hop), dict(sampled.edges_per_hop)

    def _nodes(
        self, sampled: SampledNeighborhood, type: str, new: Allocate
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        count = sampled.num_nodes(type)
        nodes = new((count,), torch.int64)
        sampled.write_nodes(nodes.numpy(), type)
        if not self.spec.in_trees:
            return nodes, None
        trees = new((count,), torch.int64)
        sampled.write_trees(trees.numpy(), type)
        return nodes, trees


_SAMPLINGS: WeakSet[GraphSampling] = WeakSet()


def _begin_anew_in_child() -> None:
    for sampling in list(_SAMPLINGS):
        sampling.begin_anew()


os.register_at_fork(after_in_child=_begin_anew_in_child)


def is_hetero(dataset: Dataset) -> bool:
    """Whether batches are of several types: more than one node type or edge type."""
    return (len(dataset.node_types), len(dataset.edge_types)) != (1, 1)


def _edges(
    sampled: SampledNeighborhood, edge_type: EdgeType, new: Allocate
) -> tuple[torch.Tensor, torch.Tensor]:
    count = sampled.num_edges(edge_type)
    ends, places = new((2, count), torch.int64), new((count,), torch.int64)
    sampled.write_edges(ends.numpy(), edge_type)
    sampled.write_edge_places(places.numpy(), edge_type)
    return ends, places


def _trees(
    nodes: Mapping[str, tuple[torch.Tensor, torch.Tensor | None]],
) -> dict[str, torch.Tensor]:
    return {name: trees for name, (_, trees) in nodes.items() if trees is not None}


def _arrays(seeds: Seeds) -> Any:
    if isinstance(seeds, Mapping):
        return {type: whole_ids(held) for type, held in seeds.items()}
    return whole_ids(seeds)
