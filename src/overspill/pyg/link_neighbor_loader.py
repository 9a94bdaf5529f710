"""LinkNeighborLoader: mini-batches of links with negatives, from a dataset bigger than memory."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch_geometric.sampler.base import SubgraphType

from overspill.errors import InputError
from overspill.graph.dataset import Dataset
from overspill.pyg.arguments import require_dataset
from overspill.pyg.links import InputEdges, LinkInputs
from overspill.pyg.loader_options import LoaderArguments
from overspill.pyg.loading import SampledLoader
from overspill.pyg.negatives import chosen_negatives
from overspill.pyg.options import FanOuts, SamplingOptions
from overspill.pyg.tasks import LinkTask


class LinkNeighborLoader(SampledLoader):
    """Yields neighbour-sampled mini-batches of links, as PyTorch Geometric's loader of that name.

    A batch is as `NeighborLoader` gives it, around both ends of its links and of the negatives, and
    holds ``input_id`` and, without negatives or with binary ones, ``edge_label_index`` (local ids),
    ``edge_label`` and ``edge_label_time``; with triplets ``src_index``, ``dst_pos_index``,
    ``dst_neg_index`` and ``seed_time``. Where the dataset has several types, they lie in the store
    of the links' type, those of triplets in those of its node types.

    Negatives are drawn as PyG draws them, and may by chance be edges; but from a stream that is a
    function of seed, epoch and batch: torch's generators are left alone. PyG's limit of 2**24
    weighted nodes does not hold.

    Determinism, memory and cost are those of `NeighborLoader`; a list of links is held once, 16
    bytes each, all edges of a type are not listed. Weights of negatives take 8 bytes a node.

    Arguments from `batch_size` on are as for `NeighborLoader`.

    Args:
        data: The dataset, with the layout "csc".
        num_neighbors: As for `NeighborLoader`.
        edge_label_index: The links: (2, links) sources and targets; an edge type for all of its
            edges, in the dataset's order, by target; a pair of an edge type and links, or None for
            all; None where there is one edge type.
        edge_label: (links, ...) labels, or None. Of the dataset's own edges these, times and
            `input_id` are in the order of the input, for which it must keep edge ids. With binary
            negatives classes count from 1 up, 0 being theirs; bools become int64.
        edge_label_time: int64 (links,); given exactly where `time_attr` is.
        replace: As for `NeighborLoader`.
        subgraph_type: As for `NeighborLoader`. The links themselves are not left out of what is
            sampled.
        disjoint: As for `NeighborLoader`; a link's ends are one tree in ``batch``.
        temporal_strategy: As for `NeighborLoader`.
        neg_sampling: "binary", "triplet", PyG's `NegativeSampling`, or a dictionary or tuple of its
            arguments; None for no negatives.
        neg_sampling_ratio: Binary negatives a link.
        time_attr: As for `NeighborLoader`.
        weight_attr: As for `NeighborLoader`.
        input_id: What to call the links in ``input_id``; None for their places.

    Attributes:
        data: The dataset.
        plan: The memory plan; ``plan.prefetch_factor`` is the one in force.
        seed: The seed in force.

    Raises:
        InputError: As for `NeighborLoader`; ends out of range, labels or times of another length,
            labels with triplets, negatives that cannot be understood.
        NoRoomError: As for `NeighborLoader`.
        StaleFileError: As for `NeighborLoader`.
        MappingError: As for `NeighborLoader`.
        SettingsError: As for `NeighborLoader`.
        UnavailableError: This is no Linux.
    """

    def __init__(  # noqa: PLR0913 - PyG's own signature
        self,
        data: Dataset,
        num_neighbors: FanOuts,
        edge_label_index: InputEdges = None,
        edge_label: torch.Tensor | None = None,
        edge_label_time: torch.Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        *,
        input_id: torch.Tensor | None = None,
        **arguments: Unpack[LoaderArguments],
    ) -> None:
        require_dataset(data, "LinkNeighborLoader")
        if (edge_label_time is None) != (time_attr is None):
            missing = "edge_label_time" if edge_label_time is None else "time_attr"
            raise InputError(
                f"links in time want both edge_label_time and time_attr, and there is no {missing}",
                remedy="give both, or neither",
            )
        inputs = LinkInputs(
            data, edge_label_index, labels=edge_label, times=edge_label_time, input_id=input_id
        )
        negatives = chosen_negatives(data, inputs.edge_type, neg_sampling, neg_sampling_ratio)
        if negatives is not None and inputs.has_labels:
            if negatives.is_triplet():
                raise InputError(
                    "triplets have no labels, and edge_label is given",
                    remedy='leave edge_label out, or take neg_sampling="binary"',
                )
            inputs.make_zero_negative()
        sampling = SamplingOptions(
            num_neighbors=num_neighbors,
            replace=replace,
            subgraph_type=subgraph_type,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            weight_attr=weight_attr,
        )
        task = LinkTask(inputs.edge_type, negatives, time_attr, label_bytes=inputs.label_bytes)
        super().__init__(data, inputs, task, sampling, **arguments)
