"""Two ranks of a training without Ray: processes that share out seeds, and train by DDP."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from overspill.cluster import places_of_rank
from overspill.errors import InputError

TARGETS = torch.randn(8, generator=torch.Generator().manual_seed(0))


def served(ends: Sequence[int], machines: Sequence[str]) -> Any:
    """Parts that are ranges of nodes, and the machine that serves each."""
    addresses = tuple(dict.fromkeys(machines))
    homes = np.array([addresses.index(machine) for machine in machines])

    def machines_of_nodes(ids: Any, _type: str | None = None) -> Any:
        return homes[np.searchsorted(ends, np.asarray(ids), side="right")]

    return SimpleNamespace(addresses=addresses, machines_of_nodes=machines_of_nodes)


def trained(batches: Sequence[torch.Tensor], wrap: Any = lambda model: model) -> list[float]:
    """The parameters of a small model after some epochs of Adam."""
    torch.manual_seed(1)
    model = wrap(torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for batch in [*batches] * 3:
        optimizer.zero_grad()
        (model(batch).squeeze(1) - TARGETS[batch]).square().mean().backward()
        optimizer.step()
    return [value for part in model.parameters() for value in part.flatten().tolist()]


def run_two(place: str) -> None:
    """Two ranks, each of which writes a file of what it found; ends with the worse status."""
    children = []
    for rank in range(2):
        children.append(os.fork())
        if not children[-1]:
            _run(rank, Path(place))
            os._exit(0)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    raise SystemExit(max(map(abs, statuses)))


def _run(rank: int, place: Path) -> None:
    """A rank on a machine of its own; at last it holds other seeds than the first one."""
    ray.util.get_node_ip_address = lambda: "ab"[rank]
    distributed.init_process_group("gloo", f"file://{place}/meet", rank=rank, world_size=2)
    dataset, seeds = served([4, 8], ["b", "a"]), torch.arange(7)
    mine = seeds[places_of_rank(dataset, seeds)]
    told: list[Any] = [mine.tolist(), trained(mine.split(3), DistributedDataParallel)]
    try:
        places_of_rank(dataset, seeds + rank)
    except InputError as error:
        told.append(str(error))
    distributed.destroy_process_group()
    (place / f"rank-{rank}").write_text(json.dumps(told))
