"""Measures what a loader's plan rests on, and asks the policy for the plan."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from overspill.errors import NoRoomError
from overspill.graph.dataset import Dataset, row_bytes
from overspill.graph.paged import BLOCK_ITEMS, WINDOW_BYTES
from overspill.graph.reading.array_keys import ArrayKey, Owner, record_of
from overspill.graph.reading.ordered import SCAN_BYTES
from overspill.graph.sampling.spec import SampleLimit
from overspill.linux.cgroups import available_memory_bytes
from overspill.linux.fetch import PAGE_BYTES
from overspill.placement.loader import (
    LoaderDemand,
    LoaderPlan,
    LoaderRoom,
    ReadingCost,
    RowsOfType,
    plan_loader,
)
from overspill.placement.neighborhood import GraphSize, bound_neighborhood
from overspill.pyg.batches import BatchRecipe
from overspill.pyg.order import Request
from overspill.pyg.sampling import GraphSampling
from overspill.settings import current_settings, size_bytes
from overspill.tensors.headroom import held_memory_bytes, memory_reserve
from overspill.tensors.rooms import shared_memory_room
from overspill.units import format_bytes

logger = logging.getLogger("overspill")
PROBED_BATCHES = 4
PROBE_MARGIN = 1.5
# Id and slots of the table, of a row that is read together with others; the smallest table.
_READ_ROW_BYTES, _TABLE_BYTES = 72, 4096
# Of an item of a block whose pages are absent: see `PagedArray.take`.
_TAKEN_ITEM_BYTES = 32
# A look at all pages of a file, and the lists of those to ask for.
_LOOK_BYTES = 4 << 20
# An id whose row may be hot: those whose rows are not, and their places.
_HOT_ID_BYTES = 16
# Of a scan's chunk of rows: where they lie, and how close together.
_CHUNK_BYTES = 8 << 20
_BYTES_A_PRESENCE_BYTE = 8 * PAGE_BYTES
_SAMPLED_BYTES = 256  # of memory, a sampled node or an edge, rounded up


def measure_room(memory_limit: str | int | None) -> LoaderRoom:
    """Measure what memory there is, for this process and workers it will start.

    Args:
        memory_limit: The most they may hold together, "1GiB" or bytes; None takes the setting,
            else the control group's limit.

    Raises:
        SettingsError: The limit is not a size.
    """
    held = current_settings()
    limit = held.memory_limit_bytes
    if memory_limit is not None:
        limit = size_bytes("memory_limit", memory_limit)
    spilled = held.spill_batches and held.spill_dir is not None
    return LoaderRoom(
        base_bytes=held_memory_bytes(),
        available_bytes=available_memory_bytes(),
        limit_bytes=limit,
        reserve_bytes=memory_reserve(held, limit),
        # Batches that do not fit there are spilled, so it does not bound what is in flight.
        shm_bytes=None if spilled else shared_memory_room(held).spare_bytes,
    )


def graph_size(dataset: Dataset) -> GraphSize:
    """Nodes and edges of a dataset by type."""
    return GraphSize(
        {type: dataset.node_record(type).count for type in dataset.node_types},
        {type: dataset.edge_record(type).count for type in dataset.edge_types},
    )


def demand_of(
    recipe: BatchRecipe,
    inputs: int,
    *,
    distinct: bool,
    lookahead: int,
    processes: Mapping[str, Any],
) -> LoaderDemand:
    """What batches of a recipe take at their proven bound.

    Args:
        recipe: How batches are made.
        inputs: The most inputs of a batch.
        distinct: Whether none comes twice in a batch.
        lookahead: Batches that are read together.
        processes: `LoaderDemand`'s workers, spawned, prefetch_factor, pinned and packs.
    """
    spec, seeds = recipe.spec, recipe.task.seeds(inputs)
    bound = _bound(recipe, seeds, distinct=distinct or recipe.task.merges_seeds)
    sizes = _row_bytes(recipe)
    demand = LoaderDemand(
        **processes,
        nodes=bound.num_nodes,
        edges=bound.num_edges,
        seeds=sum(seeds.values()),
        reading=reading_cost(recipe, scans=lookahead > 1),
        node_rows=tuple(RowsOfType(n, sizes.get(key, 0)) for key, n in bound.nodes.items()),
        edge_rows=tuple(RowsOfType(n, sizes.get(key, 0)) for key, n in bound.edges.items()),
        id_bytes=_id_bytes(recipe.dataset),
        seed_bytes=recipe.task.seed_bytes,
        trees=spec.in_trees,
        ranked=spec.induced or spec.weight is not None or spec.time is not None,
        both_ways=recipe.bidirectional,
        lookahead=lookahead,
        hot_bytes=0 if recipe.hot is None else recipe.hot.nbytes,
        connection_bytes=recipe.dataset.remote_cost.process_bytes,
    )
    if lookahead <= 1:
        return demand
    wide = _widened(recipe, demand)
    return replace(
        demand,
        # A thread of a worker does not outlive it; where there is none, others may fork from here.
        groups=2 if demand.workers and recipe.transform_output is None else 1,
        read_together_bytes=wide.row_bytes * lookahead,
        read_floor_bytes=sum(_floors(recipe).values()),
    )


def reading_cost(recipe: BatchRecipe, *, scans: bool) -> ReadingCost:
    """What a process takes to read for batches of a recipe, by `PagedArray`'s measures.

    Args:
        recipe: How batches are made.
        scans: Whether rows are read together, stretches of the file whole.
    """
    remote = recipe.dataset.remote_cost
    fixed = WINDOW_BYTES + _LOOK_BYTES + _mapped_bytes(recipe) // _BYTES_A_PRESENCE_BYTE
    fixed += remote.fixed_bytes
    return ReadingCost(
        block_items=BLOCK_ITEMS,
        item_bytes=_TAKEN_ITEM_BYTES,
        id_bytes=(0 if recipe.hot is None else _HOT_ID_BYTES) + remote.item_bytes,
        fixed_bytes=fixed + (SCAN_BYTES + _CHUNK_BYTES if scans else 0),
    )


def _mapped_bytes(recipe: BatchRecipe) -> int:
    """Bytes of all arrays that batches may be read from."""
    dataset, spec = recipe.dataset, recipe.spec
    nbytes = sum(record_of(dataset, key).nbytes for key in recipe.keys)
    for edge_type in spec.num_neighbors:
        edge = dataset.edge_record(edge_type)
        parts = edge.layouts["csc"].values()
        read = [edge.arrays.get("csc", {}).get(name or "") for name in (spec.weight, spec.time)]
        read += [
            dataset.node_record(type).arrays.get(spec.time or "") for type in dataset.node_types
        ]
        held = [record.nbytes for record in read if record is not None]
        # Links open the topology once more, to find their ends.
        nbytes += 2 * sum(part.nbytes for part in parts) + sum(held)
    return nbytes


def _bound(recipe: BatchRecipe, seeds: Mapping[str, int], *, distinct: bool) -> GraphSize:
    spec, graph = recipe.spec, graph_size(recipe.dataset)
    bound = bound_neighborhood(
        seeds,
        spec.num_neighbors,
        graph=graph,
        replace=spec.replace,
        distinct=distinct,
        trees=spec.in_trees,
    )
    if not spec.induced:
        return bound
    copies = sum(seeds.values()) if spec.in_trees else 1
    most = {key: max(count * copies, bound.edges[key]) for key, count in graph.edges.items()}
    return GraphSize(bound.nodes, most)


def _id_bytes(dataset: Dataset) -> int:
    most = max(dataset.node_record(type).count for type in dataset.node_types)
    return 4 if most <= np.iinfo(np.int32).max else 8


def plan_within(
    demand: LoaderDemand, room: LoaderRoom, *, largest_batch: Iterable[tuple[int, int]]
) -> LoaderPlan:
    """Plan by the proven bound of a batch, else by what batches measured.

    All neighbours (-1) and induced edges have no bound but the whole graph. Where that does not
    fit, the plan takes the largest of a few batches and half as much again; the sampler then
    refuses what exceeds it.

    Args:
        demand: What is asked, at its proven bound.
        room: What there is.
        largest_batch: Nodes and edges of batches to measure, drawn only when needed; empty where
            the bound is to decide alone.

    Raises:
        NoRoomError: It does not fit.
    """
    try:
        return plan_loader(demand, room)
    except NoRoomError:
        measured = list(largest_batch)
        if not measured:
            raise
    nodes = min(int(max(n for n, _ in measured) * PROBE_MARGIN), demand.nodes)
    edges = min(int(max(e for _, e in measured) * PROBE_MARGIN), demand.edges)
    logger.info(
        "no bound on the batches fits; planning for %d nodes and %d edges, half as much again as "
        "the largest of %d batches",
        nodes,
        edges,
        len(measured),
    )
    smaller = replace(demand, nodes=nodes, edges=edges)
    together = demand.read_together_bytes * smaller.row_bytes // max(demand.row_bytes, 1)
    return plan_loader(replace(smaller, read_together_bytes=together), room)


def shares_of(recipe: BatchRecipe, demand: LoaderDemand, nbytes: int) -> dict[ArrayKey, int]:
    """Memory for reading together by array: shares by the bytes that a batch may want of each.

    Args:
        recipe: How batches are made.
        demand: What they take.
        nbytes: The memory of all beside the floor of each; with none there are no shares.
    """
    dataset = recipe.dataset
    owners: list[Owner] = [*dataset.node_types, *recipe.spec.num_neighbors]
    rows = zip(owners, (*demand.node_rows, *demand.edge_rows), strict=True)
    most: dict[Owner, int] = {owner: held.most for owner, held in rows}
    wanted = {key: most[key[0]] * row_bytes(record_of(dataset, key)) for key in recipe.keys}
    total, floors = sum(wanted.values()), _floors(recipe)
    return {
        key: floors[key] + nbytes * held // total for key, held in wanted.items() if held and nbytes
    }


def is_unbounded(recipe: BatchRecipe) -> bool:
    """Whether the whole graph alone bounds a batch."""
    fan_outs = recipe.spec.num_neighbors.values()
    return recipe.spec.induced or any(-1 in held for held in fan_outs)


def probe_batches(
    recipe: BatchRecipe, requests: Iterable[Request], room: LoaderRoom
) -> Iterator[tuple[int, int]]:
    """Sample some batches, without features, to see how large they become.

    Never takes more than a quarter of the room: a batch beyond that is a `NoRoomError`.

    Yields:
        Nodes and edges of each.
    """
    spare = max(room.allowed_bytes - room.base_bytes, 0) // 4
    most = spare // (2 * _SAMPLED_BYTES)
    sampling = GraphSampling(recipe.dataset, recipe.spec, SampleLimit(most, most))
    for request in requests:
        out = recipe.task.sample(request, sampling, seed=recipe.seed)
        yield _total(out.node), _total(out.row)


def some_places(count: int, batch_size: int) -> Iterator[np.ndarray]:
    """Places of a few batches, spread over the inputs."""
    for start in np.linspace(0, max(count - batch_size, 0), PROBED_BATCHES).astype(np.int64):
        yield np.arange(start, min(int(start) + batch_size, count))


def report_plan(plan: LoaderPlan, *, wanted_prefetch: int) -> None:
    """Say once, in the log, what was planned; a warning where the prefetch was lowered."""
    if plan.prefetch_factor < wanted_prefetch:
        logger.warning(
            "prefetch_factor lowered from %d to %d: %s",
            wanted_prefetch,
            plan.prefetch_factor,
            plan.reason,
        )
    logger.info(
        "the loader may come to %s of %s",
        format_bytes(plan.projected_bytes),
        format_bytes(plan.allowed_bytes),
    )


def _row_bytes(recipe: BatchRecipe) -> dict[Owner, int]:
    sizes: dict[Owner, int] = {}
    for key in recipe.keys:
        sizes[key[0]] = sizes.get(key[0], 0) + row_bytes(record_of(recipe.dataset, key))
    return sizes


def _floors(recipe: BatchRecipe) -> dict[ArrayKey, int]:
    """What reading together takes at the least, by array: one row and its place in a table."""
    sizes = {key: row_bytes(record_of(recipe.dataset, key)) for key in recipe.keys}
    return {key: size + _TABLE_BYTES for key, size in sizes.items()}


def _widened(recipe: BatchRecipe, demand: LoaderDemand) -> LoaderDemand:
    """The demand with each row as large as reading it together makes it."""
    arrays = Counter(key[0] for key in recipe.keys)

    def widened(owners: Iterable[Owner], rows: Iterable[RowsOfType]) -> tuple[RowsOfType, ...]:
        return tuple(
            RowsOfType(held.most, held.row_bytes + arrays[owner] * _READ_ROW_BYTES)
            for owner, held in zip(owners, rows, strict=True)
        )

    return replace(
        demand,
        node_rows=widened(recipe.dataset.node_types, demand.node_rows),
        edge_rows=widened(recipe.spec.num_neighbors, demand.edge_rows),
    )


def _total(held: torch.Tensor | Mapping[Any, torch.Tensor]) -> int:
    parts = held.values() if isinstance(held, Mapping) else [held]
    return sum(part.numel() for part in parts)
