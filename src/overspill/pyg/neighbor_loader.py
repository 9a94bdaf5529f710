"""NeighborLoader: PyTorch Geometric's mini-batches, from a dataset bigger than memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace as replace_fields
from typing import Any

import numpy as np
import torch
from torch import multiprocessing
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from overspill.graph.dataset import Dataset
from overspill.graph.sampling.spec import SampleLimit, check_fan_outs
from overspill.graph.warm import warm_kernels
from overspill.placement.loader import LoaderDemand, LoaderPlan, bound_neighborhood
from overspill.pyg.arguments import chosen_order, require_dataset, require_known
from overspill.pyg.batches import BatchMaker, BatchRecipe, Transform, chosen_features
from overspill.pyg.projection import (
    measure_room,
    plan_within,
    probe_batches,
    report_plan,
    some_requests,
)
from overspill.pyg.seeds import InputNodes, SeedBatches

_USUAL_PREFETCH = 2


class NeighborLoader(DataLoader[Data]):
    """Yields neighbour-sampled mini-batches as `torch_geometric.data.Data`.

    Each batch holds the node arrays of its nodes, ``edge_index`` (local ids; row 0 the sources, row
    1 the destinations), ``n_id`` (seeds first, then in order of discovery), ``batch_size``,
    ``input_id``, ``num_sampled_nodes``, ``num_sampled_edges`` and ``num_nodes``. Edges
    are told by their ends alone: there is no ``e_id``, and edge arrays are not gathered, in this
    version. A fan-out of the degree or more gives every in-edge
    exactly once; with ``replace=True`` exactly the fan-out is drawn, as PyG does. A repeated seed
    keeps its places and samples for each.

    The same `seed` gives the same batches whatever the number of workers; each pass over the loader
    is the next epoch. Batches are made in the workers, which open the dataset by its path, and
    handed over in shared memory. Memory is projected before any worker starts: the prefetch factor
    is lowered to what fits, with one warning. Costs nothing that grows with the graph, except
    that a list of input nodes is held once. Each loader plans alone: of two that run at the same
    time, give each its share by `memory_limit`. The first loader of a process compiles the
    kernels: 3 s, or 0.4 s from the cache.

    Where a fan-out is -1 and the bound on a batch (all edges, at worst) does not fit, the plan goes
    by the largest of 4 probed batches and half as much again: a batch that outgrows it, a hub's for
    example, raises `NoRoomError` in mid-epoch instead of being killed. Finite fan-outs are bounded.

    Threads may iterate at the same time; without workers they take turns at each batch.

    Args:
        dataset: The dataset, of one node type and one edge type, with the layout "csc".
        num_neighbors: One fan-out a hop; -1 for all neighbours.
        batch_size: Seeds a batch.
        input_nodes: Seeds: ids, a boolean mask of shape (nodes,), or None for all nodes; tensors,
            arrays or lists.
        replace: Draw neighbours with replacement.
        shuffle: Put the seeds in a new random order each epoch.
        num_workers: Worker processes; 0 makes the batches here.
        features: Names of the node arrays to gather; None for all.
        memory_limit: The most that this process and its workers may hold together ("1GiB");
            None goes by the setting, the control group and the machine.
        seed: Seed of order and sampling; None draws one from torch's generator.
        transform: Called on each batch where it is made.
        **kwargs: Further arguments of `torch.utils.data.DataLoader`.

    Attributes:
        plan: The memory plan; ``plan.prefetch_factor`` is the one in force.
        seed: The seed in force.

    Raises:
        InputError: Bad fan-outs, seeds out of range, an unknown feature; several node or edge
            types, no layout "csc", or a part of a partition.
        NoRoomError: Not even the smallest prefetch fits; the message says what to change.
        StaleFileError: A file of the dataset changed; raised from workers too. Checked before each
            batch: a file cut in the middle of one still ends the process that reads it by SIGBUS.
        SettingsError: A variable of the environment cannot be understood.
        UnavailableError: This is no Linux.
    """

    def __init__(  # noqa: PLR0913 - PyG's own signature
        self,
        dataset: Dataset,
        num_neighbors: Sequence[int],
        *,
        batch_size: int = 1,
        input_nodes: torch.Tensor | Iterable[int] | None = None,
        replace: bool = False,
        shuffle: bool = False,
        num_workers: int = 0,
        features: Sequence[str] | None = None,
        memory_limit: str | int | None = None,
        seed: int | None = None,
        transform: Transform | None = None,
        **kwargs: Any,
    ) -> None:
        require_dataset(dataset)
        require_known(num_workers, transform, kwargs.get("prefetch_factor"), kwargs)
        order = chosen_order(shuffle, kwargs.pop("sampler", None))
        self.data = dataset
        self.seed = (
            int(torch.empty((), dtype=torch.int64, device="cpu").random_())
            if seed is None
            else int(seed)
        )
        self._epoch = 0
        inputs = InputNodes(dataset, input_nodes)
        self._batches = batches = SeedBatches(
            inputs,
            batch_size=batch_size,
            order=order,
            drop_last=bool(kwargs.pop("drop_last", False)),
            seed=self.seed,
        )
        recipe = BatchRecipe(
            dataset=dataset,
            num_neighbors=check_fan_outs(num_neighbors),
            replace=replace,
            features=chosen_features(dataset, features),
            seed=self.seed,
            transform=transform,
            limit=None,
        )
        # Before memory is measured: the compiler's own memory then counts as in use.
        warm_kernels(dataset.edge_record().layouts["csc"]["indices"].dtype)
        self.plan = _plan(recipe, batches, num_workers, memory_limit, kwargs)
        if num_workers:
            kwargs["prefetch_factor"] = self.plan.prefetch_factor
        limit = SampleLimit(self.plan.nodes, self.plan.edges)
        maker = BatchMaker(replace_fields(recipe, limit=limit), len(inputs))
        super().__init__(
            maker,
            batch_sampler=batches,  # type: ignore[arg-type] # requests, not lists of indices
            collate_fn=_as_made,
            num_workers=num_workers,
            **kwargs,
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass over the loader the given epoch, for example after a restart."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Data]:  # type: ignore[override]
        self._batches.epoch = self._epoch
        self._epoch += 1
        return super().__iter__()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _plan(
    recipe: BatchRecipe,
    batches: SeedBatches,
    num_workers: int,
    memory_limit: str | int | None,
    kwargs: dict[str, Any],
) -> LoaderPlan:
    dataset, inputs = recipe.dataset, batches.inputs
    graph = dataset.node_record().count, dataset.edge_record().count
    seeds = min(batches.batch_size, len(inputs)) if batches.once else batches.batch_size
    nodes, edges = bound_neighborhood(
        seeds,
        recipe.num_neighbors,
        graph=graph,
        replace=recipe.replace,
        distinct=batches.once and inputs.distinct,
    )
    demand = LoaderDemand(
        workers=num_workers,
        spawned=_start_method(kwargs.get("multiprocessing_context")) != "fork",
        prefetch_factor=kwargs.get("prefetch_factor") or _USUAL_PREFETCH,
        pinned=bool(kwargs.get("pin_memory")),
        nodes=nodes,
        edges=edges,
        seeds=seeds,
        row_bytes=recipe.row_bytes,
        id_bytes=4 if graph[0] <= np.iinfo(np.int32).max else 8,
    )
    room = measure_room(memory_limit)
    probes: Iterable[tuple[int, int]] = ()
    if -1 in recipe.num_neighbors:
        places = some_requests(len(inputs), batches.batch_size)
        requests = (inputs.request(0, index, held) for index, held in enumerate(places))
        probes = probe_batches(dataset, recipe.num_neighbors, requests, room)
    plan = plan_within(demand, room, largest_batch=probes)
    report_plan(plan, wanted_prefetch=demand.prefetch_factor if num_workers else 0)
    return plan


def _start_method(context: Any) -> str:
    if context is None or isinstance(context, str):
        return context or str(multiprocessing.get_start_method())
    return str(context.get_start_method())


def _as_made(batch: Any) -> Any:
    return batch
