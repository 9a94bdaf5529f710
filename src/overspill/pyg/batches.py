"""Makes one batch, in whichever process: sample, gather, put together as PyTorch Geometric does.

In a worker the batch is built in shared memory from the start, so that handing it over copies
nothing; where batches are spilled, what does not fit there is built in a file instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as MapDataset
from torch_geometric.data import Data

from overspill.errors import InputError
from overspill.graph.dataset import Dataset, row_bytes
from overspill.graph.sampling.sampler import NeighborSampler, SampleLimit
from overspill.graph.streams import stream_key
from overspill.pyg.seeds import BatchRequest
from overspill.tensors.batches import allocate_in_worker
from overspill.tensors.dtypes import torch_dtype

_BATCH_STREAM = 2  # apart from the order of the seeds
_RESERVED = (
    "batch", "batch_size", "e_id", "edge_index", "input_id", "n_id", "num_nodes",
    "num_sampled_edges", "num_sampled_nodes", "seed_time",
)  # fmt: skip
Transform = Callable[[Data], Any]


@dataclass(frozen=True, kw_only=True)
class BatchRecipe:
    """What every batch of a loader is made by; it pickles, the dataset by path.

    Attributes:
        dataset: The dataset.
        num_neighbors: One fan-out a hop.
        replace: Whether edges are drawn with replacement.
        features: Names of the node arrays to gather.
        seed: Seed of the loader.
        transform: Applied to each batch where it is made, or None.
        limit: The largest neighbourhood planned for.
    """

    dataset: Dataset
    num_neighbors: tuple[int, ...]
    replace: bool
    features: tuple[str, ...]
    seed: int
    transform: Transform | None
    limit: SampleLimit | None

    @property
    def row_bytes(self) -> int:
        """Bytes of all gathered rows of one node."""
        arrays = self.dataset.node_record().arrays
        return sum(row_bytes(arrays[name]) for name in self.features)


class BatchMaker(MapDataset[Data]):
    """The DataLoader's dataset: a request in, a batch out.

    The sampler and its buffers are made in the process that first asks, and stay there; threads
    that ask at the same time take turns, since they share the buffers.

    Args:
        recipe: How batches are made.
        num_seeds: Input nodes of an epoch, for ``len(loader.dataset)``.
    """

    def __init__(self, recipe: BatchRecipe, num_seeds: int) -> None:
        self.recipe = recipe
        self._num_seeds = num_seeds
        self._sampler: NeighborSampler | None = None
        self._turn = threading.Lock()

    def __len__(self) -> int:
        return self._num_seeds

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchMaker, (self.recipe, self._num_seeds)

    def __getitem__(self, request: BatchRequest) -> Data:
        return self.__getitems__(request)

    def __getitems__(self, request: BatchRequest) -> Data:
        """Make the batch that a request describes.

        Raises:
            StaleFileError: A file of the dataset was cut, replaced or removed.
            NoRoomError: The batch outgrew the plan, or does not fit in /dev/shm.
        """
        recipe = self.recipe
        nodes, edges, sampled = self._sample(request)
        data = Data(edge_index=edges)
        for name in recipe.features:
            data[name] = self._gather(name, nodes)
        data.n_id = nodes
        data.num_nodes = nodes.numel()
        data.num_sampled_nodes, data.num_sampled_edges = sampled
        data.input_id = allocate_in_worker((request.seeds.size,), torch.int64)
        data.input_id.copy_(torch.from_numpy(np.asarray(request.input_ids)))
        data.batch_size = request.seeds.size
        return data if recipe.transform is None else recipe.transform(data)

    def _sample(
        self, request: BatchRequest
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[list[int], list[int]]]:
        recipe = self.recipe
        with self._turn:
            if self._sampler is None:
                self._sampler = recipe.dataset.sampler(
                    recipe.num_neighbors, replace=recipe.replace, limit=recipe.limit
                )
            self._sampler.check_unchanged()
            key = stream_key(recipe.seed, request.epoch, _BATCH_STREAM, request.index)
            sampled = self._sampler.sample(request.seeds, key=key)
            (nodes_per_hop,) = sampled.nodes_per_hop.values()
            (edges_per_hop,) = sampled.edges_per_hop.values()
            counts = nodes_per_hop, edges_per_hop
            nodes = allocate_in_worker((sum(counts[0]),), torch.int64)
            edges = allocate_in_worker((2, sum(counts[1])), torch.int64)
            sampled.write_nodes(nodes.numpy())
            sampled.write_edges(edges.numpy())
        return nodes, edges, counts

    def _gather(self, name: str, nodes: torch.Tensor) -> torch.Tensor:
        dataset = self.recipe.dataset
        record = dataset.node_record().arrays[name]
        out = allocate_in_worker((nodes.numel(), *record.shape[1:]), torch_dtype(record.dtype))
        return dataset.gather(name, nodes, out=out)


def chosen_features(dataset: Dataset, names: Sequence[str] | None) -> tuple[str, ...]:
    """Check the names of the node arrays to gather; None takes all (InputError)."""
    held = dataset.feature_names()
    if isinstance(names, str):
        names = [names]
    wanted = tuple(held if names is None else names)
    unknown = [name for name in wanted if name not in held]
    if unknown:
        raise InputError(
            f"no node array is called {unknown[0]!r}",
            path=str(dataset.path),
            value=str(unknown[0]),
            remedy=f"one of: {', '.join(held) or '(there is none)'}",
        )
    taken = [name for name in wanted if name in _RESERVED]
    if taken:
        raise InputError(
            f"the node array {taken[0]!r} would hide a part of the batch of that name",
            path=str(dataset.path),
            remedy="leave it out by features=[...], or build the dataset with another name",
        )
    return wanted
