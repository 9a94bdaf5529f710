"""What a batch is made for: nodes or links. Samples it, and says of it what PyTorch Geometric does.

PyG's own `node_sample` and `edge_sample` are called with this library's sampling, so that seeds,
negatives, labels and the attributes of a batch are theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from overspill.graph.dataset import EdgeType
from overspill.graph.edge_ends import Ends
from overspill.graph.streams import stream_key
from overspill.pyg.links import LinkRequest
from overspill.pyg.negatives import KeyedNegatives, NodeTimes
from overspill.pyg.sampling import Allocate, GraphSampling, Output, plain_tensor
from overspill.pyg.seeds import NodeRequest

_BATCH_STREAM = 2  # apart from the order of the inputs
_NEGATIVE_STREAM = 3
Batch: TypeAlias = Data | HeteroData
Hand = Callable[[torch.Tensor], torch.Tensor]


class Task(Protocol):
    """Samples batches of one kind, and tells of their inputs."""

    def sample(
        self, request: Any, sampling: GraphSampling, *, seed: int, new: Allocate = plain_tensor
    ) -> Output:
        """Sample the batch of a request, its metadata as PyG's samplers give it."""
        ...

    def describe(self, batch: Batch, out: Output, hand: Hand) -> None:
        """Set the attributes that tell of the inputs; `hand` puts a tensor where it can be sent."""
        ...

    @property
    def seed_bytes(self) -> int:
        """The most bytes that a batch holds for a seed, beside it as a node."""
        ...

    def seeds(self, inputs: int) -> dict[str, int]:
        """The most seeds of a batch of so many inputs, by node type."""
        ...

    @property
    def merges_seeds(self) -> bool:
        """Whether a seed that comes twice is sampled once, where seeds are no trees."""
        ...

    def digest(self) -> str:
        """What tells this task from others."""
        ...


@dataclass(frozen=True)
class NodeTask:
    """Batches of nodes.

    Attributes:
        node_type: The type of the input nodes.
    """

    node_type: str

    def sample(
        self,
        request: NodeRequest,
        sampling: GraphSampling,
        *,
        seed: int,
        new: Allocate = plain_tensor,
    ) -> Output:
        """Sample the neighbourhood of the request's seeds."""
        inputs = NodeSamplerInput(
            input_id=_tensor(request.input_ids),
            node=_tensor(request.seeds),
            time=None if request.times is None else _tensor(request.times),
            input_type=self.node_type if sampling.hetero else None,
        )
        key = stream_key(seed, request.epoch, _BATCH_STREAM, request.index)
        return node_sample(inputs, partial(sampling.sample, key=key, new=new))

    def describe(self, batch: Batch, out: Output, hand: Hand) -> None:
        """Set `input_id`, `seed_time` and `batch_size`."""
        input_id, times = out.metadata
        store: Any = batch[self.node_type] if isinstance(batch, HeteroData) else batch
        store.input_id = hand(input_id)
        if times is not None:
            store.seed_time = hand(times)
        store.batch_size = input_id.numel()

    @property
    def seed_bytes(self) -> int:
        """Its place among the inputs and its time, as it is asked for and as it is told."""
        return 2 * 3 * 8

    def seeds(self, inputs: int) -> dict[str, int]:
        """One an input."""
        return {self.node_type: inputs}

    @property
    def merges_seeds(self) -> bool:
        """Every occurrence of a seed keeps its place."""
        return False

    def digest(self) -> str:
        """The type."""
        return f"nodes {self.node_type}"


class LinkTask:
    """Batches of links, with negative samples where they are asked for.

    Args:
        edge_type: The type of the input links.
        negatives: How negatives are drawn, or None.
        time_attr: Node array of times that negatives must not come after, or None.
        label_bytes: Bytes of a link's label.
    """

    def __init__(
        self,
        edge_type: EdgeType,
        negatives: KeyedNegatives | None,
        time_attr: str | None,
        *,
        label_bytes: int = 8,
    ) -> None:
        self.edge_type, self.negatives, self.time_attr = edge_type, negatives, time_attr
        self.label_bytes = label_bytes
        self._ends: Ends | None = None
        self._times: dict[str, NodeTimes] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(LinkTask, label_bytes=self.label_bytes)
        return make, (self.edge_type, self.negatives, self.time_attr)

    def sample(
        self,
        request: LinkRequest,
        sampling: GraphSampling,
        *,
        seed: int,
        new: Allocate = plain_tensor,
    ) -> Output:
        """Sample the neighbourhood of the request's links and of its negatives."""
        ends = self._ends_of(request, sampling)
        inputs = EdgeSamplerInput(
            input_id=_tensor(request.input_ids),
            row=_tensor(ends[0]),
            col=_tensor(ends[1]),
            label=None if request.labels is None else _tensor(request.labels),
            time=None if request.times is None else _tensor(request.times),
            input_type=self.edge_type if sampling.hetero else None,
        )
        parts = seed, request.epoch
        key = stream_key(*parts, _BATCH_STREAM, request.index)
        drawn = stream_key(*parts, _NEGATIVE_STREAM, request.index)
        sample = partial(sampling.sample, key=key, new=new)
        return self.sample_links(inputs, sampling, sample, drawn)

    def sample_links(
        self,
        inputs: EdgeSamplerInput,
        sampling: GraphSampling,
        sample: Callable[..., Output],
        key: np.uint64,
    ) -> Output:
        """Sample links as PyG does, negatives drawn from the stream of `key`."""
        dataset, hetero = sampling.dataset, sampling.hetero
        counts = {name: dataset.node_record(name).count for name in dataset.node_types}
        times = self._node_times(sampling)
        only = dataset.node_types[0]
        return edge_sample(
            inputs,
            sample,
            counts if hetero else counts[only],
            sampling.spec.in_trees,
            times if hetero else times.get(only),
            None if self.negatives is None else self.negatives.keyed(key),
        )

    def describe(self, batch: Batch, out: Output, hand: Hand) -> None:
        """Set the labels or the triplets, and `input_id`."""
        told = [None if held is None else hand(held) for held in out.metadata]
        hetero = isinstance(batch, HeteroData)
        link: Any = batch[self.edge_type] if hetero else batch
        link.input_id = told[0]
        if self.negatives is not None and self.negatives.is_triplet():
            source: Any = batch[self.edge_type[0]] if hetero else batch
            target: Any = batch[self.edge_type[2]] if hetero else batch
            source.src_index = told[1]
            target.dst_pos_index, target.dst_neg_index = told[2:4]
            source.seed_time = target.seed_time = told[4]
        else:
            link.edge_label_index, link.edge_label, link.edge_label_time = told[1:]

    @property
    def seed_bytes(self) -> int:
        """Ends, indices, labels, times and ids, as they are asked for, made unique and told."""
        return 3 * 6 * 8 + 2 * self.label_bytes

    def seeds(self, inputs: int) -> dict[str, int]:
        """Both ends of each link, and the negatives."""
        held = dict.fromkeys((self.edge_type[0], self.edge_type[2]), 0)
        negatives = self.negatives
        pairs = 0 if negatives is None else negatives.draws(inputs)
        if negatives is None or negatives.is_binary():
            held[self.edge_type[0]] += pairs
        held[self.edge_type[0]] += inputs
        held[self.edge_type[2]] += inputs + pairs
        return held

    @property
    def merges_seeds(self) -> bool:
        """PyG makes the ends of a batch's links unique."""
        return True

    def digest(self) -> str:
        """The type, and how negatives are drawn."""
        drawn = None if self.negatives is None else self.negatives.digest()
        return f"links {self.edge_type} {self.time_attr} {drawn}"

    def _ends_of(self, request: LinkRequest, sampling: GraphSampling) -> Any:
        if request.ends is not None:
            return request.ends
        if self._ends is None:
            self._ends = sampling.dataset.open_edge_ends(self.edge_type)
        return self._ends.at(request.places)

    def _node_times(self, sampling: GraphSampling) -> dict[str, NodeTimes]:
        if self._times is None:
            dataset, name = sampling.dataset, self.time_attr
            self._times = {
                type: NodeTimes(dataset, name, type)
                for type in dataset.node_types
                if name is not None and name in dataset.feature_names(type)
            }
        return self._times


def _tensor(array: Any) -> torch.Tensor:
    held = np.ascontiguousarray(array)
    # A request may come from a buffer that numpy holds as read-only.
    return torch.from_numpy(held if held.flags.writeable else held.copy())
