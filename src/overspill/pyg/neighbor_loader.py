"""NeighborLoader: PyTorch Geometric's mini-batches, from a dataset bigger than memory."""

from __future__ import annotations

from typing import Unpack

import torch
from torch_geometric.sampler.base import SubgraphType

from overspill.errors import InputError
from overspill.graph.dataset import Dataset
from overspill.pyg.arguments import require_dataset
from overspill.pyg.loader_options import LoaderArguments
from overspill.pyg.loading import SampledLoader
from overspill.pyg.options import FanOuts, SamplingOptions
from overspill.pyg.seeds import InputNodes, NodeInputs
from overspill.pyg.tasks import NodeTask


class NeighborLoader(SampledLoader):
    """Yields neighbour-sampled mini-batches of nodes, as PyTorch Geometric's loader of that name.

    A dataset of one node type and one edge type gives `torch_geometric.data.Data`, another one
    `HeteroData`. A batch holds the node arrays of its nodes and the edge arrays of its edges,
    ``edge_index`` (local ids; row 0 the sources, row 1 the destinations), ``n_id`` (seeds first,
    then in order of discovery), ``e_id`` (the edge's number in the input where the dataset keeps
    edge ids, else its place in the dataset's order, by destination), ``num_nodes``, ``batch_size``,
    ``input_id``, with `input_time` ``seed_time``; for directional subgraphs ``num_sampled_nodes``
    and ``num_sampled_edges``; where seeds are disjoint ``batch``, the seed of each node. Edges of a
    bidirectional subgraph of several types stand for two: they have neither ``e_id`` nor arrays.

    A fan-out of the degree or more gives every in-edge exactly once; with ``replace=True`` exactly
    the fan-out is drawn. A repeated seed keeps its places and samples for each.

    The same `seed` gives the same batches whatever the number of workers; each pass over the loader
    is the next epoch. Batches are made in the workers, which open the dataset by its path, and
    handed over in shared memory. Memory is projected before any worker starts: the prefetch is
    lowered to what fits, with one warning. Costs nothing that grows with the graph, except that a
    list of input nodes is held once. Each loader plans alone: of two that run at the same time,
    give each its share by `memory_limit`. The first loader of a process compiles the kernels: 3 s,
    or 0.4 s from the cache.

    Where a fan-out is -1 or the subgraph induced, and the bound on a batch (all edges, at worst)
    does not fit, the plan goes by the largest of 4 probed batches and half as much again: a batch
    that outgrows it, a hub's for example, raises `NoRoomError` in mid-epoch instead of being
    killed. Finite fan-outs are bounded.

    What keeps the device busy is that batches are made at the same time, by workers or the thread,
    each with its own full queue of reads: reading ahead means making ahead (`prefetch_batches`) or
    reading several together (`lookahead`). Rows of a batch that is not being made are never asked
    for, on purpose: they are known only once it is sampled, which is most of what is left to do,
    and in a small memory group they would drive out pages before they are used.

    Threads may iterate at the same time; in one process they take turns at each batch. The pass of
    each is an epoch of its own. After a worker was killed, persistent ones too, make a new loader.

    Further arguments are those of `torch.utils.data.DataLoader`.

    Args:
        data: The dataset, with the layout "csc".
        num_neighbors: One fan-out a hop, or such a list for each edge type; -1 for all neighbours.
        input_nodes: Seeds: ids, a boolean mask of shape (nodes,), or None for all nodes; tensors,
            arrays or lists. With several node types, the type's name for all of its nodes, or a
            pair of the name and one of these.
        input_time: int64, one a seed; None takes the times of the nodes.
        replace: Draw neighbours with replacement.
        subgraph_type: "directional" for the sampled edges, "bidirectional" for these and their
            reverse, "induced" for all edges between the sampled nodes.
        disjoint: Make each seed's neighbourhood a tree of its own.
        temporal_strategy: "uniform", or "last" for the most recent neighbours.
        time_attr: Node or edge array of whole numbers: neighbours later than the seed are not
            followed. Implies `disjoint`.
        weight_attr: Edge array: neighbours are drawn in proportion to it. One of weight 0 is drawn
            only where all are: by a fan-out of the degree or more, or of -1.
        input_id: What to call the seeds in ``input_id``; None for their places.
        batch_size: Seeds a batch.
        shuffle: Put the seeds in a new random order each epoch.
        sampler: A sampler of places instead.
        drop_last: Leave an incomplete last batch out.
        num_workers: Worker processes; 0 makes the batches here.
        features: Names of the node arrays to gather, or such lists by node type; None for all.
        edge_features: The same of edge arrays.
        memory_limit: The most that this process and its workers may hold together ("1GiB");
            None goes by the setting, the control group and the machine.
        seed: Seed of order and sampling; None takes that of the `pack`, if there is one, else draws
            one from torch's generator.
        hot_rows: Memory for the rows of the nodes of the highest degree ("512MiB"), once for all
            workers; or rows chosen otherwise (`overspill.pyg.HotRows`), as by `count_uses`.
        lookahead: Batches that a worker samples together, so that their rows are read once, in file
            order. The batches are the same.
        pack: A directory: the batches of epoch 0 are sampled and written there in the first pass,
            rows and all, and every epoch reads them in order. The batches are then the same in
            every epoch. Recognised by what makes the batches, a `transform_sampler_output` by its
            name: it must be a module's own function, and remove the pack when you change its code.
        prefetch_batches: Batches to make ahead: by a thread without workers (0 by default), else
            by all workers together (torch's habit by default, 2 each). Whole batches are made
            ahead; of those not yet begun no row is asked for. See above.
        transform: Called on each batch where it is made.
        transform_sampler_output: Called on what was sampled, PyG's `SamplerOutput` or
            `HeteroSamplerOutput`, before rows are gathered; ``edge`` are places.

    Attributes:
        data: The dataset.
        plan: The memory plan; ``plan.prefetch_factor`` is the one in force.
        seed: The seed in force.

    Raises:
        InputError: Bad fan-outs, seeds out of range, an unknown name; no layout "csc", or a part of
            a partition. From batches: a weight that is none.
        NoRoomError: Not even the smallest prefetch fits; the message says what to change.
        StaleFileError: A file of the dataset changed; raised from workers too.
        MappingError: The disk refused to read; raised from workers too.
        SettingsError: A size, or a variable of the environment, cannot be understood.
        UnavailableError: This is no Linux.
    """

    def __init__(  # noqa: PLR0913 - PyG's own signature
        self,
        data: Dataset,
        num_neighbors: FanOuts,
        input_nodes: InputNodes = None,
        input_time: torch.Tensor | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        *,
        input_id: torch.Tensor | None = None,
        **arguments: Unpack[LoaderArguments],
    ) -> None:
        require_dataset(data, "NeighborLoader")
        inputs = NodeInputs(data, input_nodes, times=input_time, input_id=input_id)
        _require_times(data, inputs.node_type, time_attr, given=input_time is not None)
        sampling = SamplingOptions(
            num_neighbors=num_neighbors,
            replace=replace,
            subgraph_type=subgraph_type,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            weight_attr=weight_attr,
        )
        super().__init__(data, inputs, NodeTask(inputs.node_type), sampling, **arguments)


def _require_times(dataset: Dataset, type: str, time_attr: str | None, *, given: bool) -> None:
    if time_attr is None:
        if given:
            raise InputError(
                "input_time is given, and no time_attr",
                remedy="name the array of times that neighbours are held to",
            )
    elif not given and time_attr not in dataset.feature_names(type):
        raise InputError(
            f"nodes of type {type!r} have no {time_attr!r}, so that their seeds have no times",
            path=str(dataset.path),
            remedy="pass input_time, one a seed, or name an array of theirs: "
            f"{', '.join(dataset.feature_names(type)) or '(there is none)'}",
        )
