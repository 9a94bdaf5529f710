"""Measures what a loader's plan rests on, and asks the policy for the plan."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from overspill.errors import NoRoomError, SettingsError
from overspill.graph.dataset import Dataset
from overspill.graph.sampling.sampler import SampleLimit
from overspill.graph.streams import stream_key
from overspill.linux.cgroups import available_memory_bytes
from overspill.placement.loader import LoaderDemand, LoaderPlan, LoaderRoom, plan_loader
from overspill.pyg.seeds import BatchRequest
from overspill.settings import current_settings
from overspill.tensors.headroom import held_memory_bytes, memory_reserve
from overspill.tensors.rooms import shared_memory_room
from overspill.units import format_bytes, parse_bytes

logger = logging.getLogger("overspill")
PROBED_BATCHES = 4
PROBE_MARGIN = 1.5
_SAMPLED_BYTES = 128  # of sampler memory, a node or an edge, rounded up


def measure_room(memory_limit: str | int | None) -> LoaderRoom:
    """Measure what memory there is, for this process and workers it will start.

    Args:
        memory_limit: The most they may hold together, "1GiB" or bytes; None takes the setting,
            else the control group's limit.

    Raises:
        SettingsError: The limit is not a size.
    """
    held = current_settings()
    limit = held.memory_limit_bytes if memory_limit is None else _parsed(memory_limit)
    spilled = held.spill_batches and held.spill_dir is not None
    return LoaderRoom(
        base_bytes=held_memory_bytes(),
        available_bytes=available_memory_bytes(),
        limit_bytes=limit,
        reserve_bytes=memory_reserve(held, limit),
        # Batches that do not fit there are spilled, so it does not bound what is in flight.
        shm_bytes=None if spilled else shared_memory_room(held).spare_bytes,
    )


def plan_within(
    demand: LoaderDemand, room: LoaderRoom, *, largest_batch: Iterable[tuple[int, int]]
) -> LoaderPlan:
    """Plan by the proven bound of a batch, else by what batches measured.

    All neighbours (-1) have no bound but the whole graph. Where that does not fit, the plan takes
    the largest of a few batches and half as much again; the sampler then refuses what exceeds it.

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
    return plan_loader(replace(demand, nodes=nodes, edges=edges), room)


def probe_batches(
    dataset: Dataset, fan_outs: tuple[int, ...], requests: Iterable[BatchRequest], room: LoaderRoom
) -> Iterable[tuple[int, int]]:
    """Sample some batches, without features, to see how large they become.

    Never takes more than a quarter of the room: a batch beyond that is a `NoRoomError`.

    Yields:
        Nodes and edges of each.
    """
    spare = max(room.allowed_bytes - room.base_bytes, 0) // 4
    most = spare // (2 * _SAMPLED_BYTES)
    sampler = dataset.sampler(fan_outs, limit=SampleLimit(most, most))
    for request in requests:
        sampled = sampler.sample(request.seeds, key=stream_key(request.epoch, request.index))
        yield sampled.num_nodes(), sampled.num_edges()


def some_requests(count: int, batch_size: int) -> Iterable[np.ndarray]:
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


def _parsed(memory_limit: str | int) -> int:
    try:
        return parse_bytes(memory_limit)
    except ValueError as error:
        raise SettingsError(
            f"memory_limit={memory_limit!r} is not a size",
            remedy='write it like "2GiB" or 1073741824',
        ) from error
