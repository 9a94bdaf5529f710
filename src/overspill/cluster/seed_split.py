"""Which seeds each rank of a training takes: those of its own machine's parts, as many as others.

Bottleneck: one stable sort of the machines of the seeds. Algorithm: each rank's fair share is
filled from the seeds whose parts its machine serves, in their order; what a machine has beyond the
shares of its ranks goes to the ranks that lack some. Limits: each rank holds the whole list, and
some 40 bytes a seed while it splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
import torch
from torch import distributed

from overspill.cluster.dataset import ClusterDataset
from overspill.errors import InputError
from overspill.graph.node_ids import whole_ids
from overspill.pyg.seeds import digest_of

_Ids = npt.NDArray[np.int64]
_NO_RANK = -1  # a machine that serves and does not train
_Given = torch.Tensor | npt.NDArray[Any] | Sequence[int]


def split_by_owner(
    dataset: ClusterDataset,
    ids: _Given,
    machines: Sequence[str],
    *,
    type: str | None = None,
    equal: bool = True,
) -> list[torch.Tensor]:
    """Split seeds over the ranks of a training, so that each reads mostly its own machine's parts.

    The shares are even, so that no rank waits for another. A rank is given seeds of its own
    machine's parts; where these do not fill its share, as where all seeds lie in one part, seeds
    that other machines have too many of. Every rank that asks the same gets the same answer.

    Places, and not the ids, so that what goes with a seed is split with it: ``ids[mine]``,
    ``input_time[mine]``; or ``links[:, mine]``, split by the owners of ``links[1]``.

    Args:
        dataset: The dataset whose parts are served.
        ids: The seeds, as global ids.
        machines: The machine of each rank, by the address of its Ray node; those that serve no part
            may be among them.
        type: The node type; may be left out where there is one only.
        equal: Give all ranks equally many, so that with one batch size all have equally many
            batches, as DistributedDataParallel and the states of optimizers need it: up to one
            seed a rank comes twice. False gives each seed once, in shares that differ by one.

    Returns:
        int64 (share,) for each rank: places in `ids`.

    Raises:
        InputError: No rank, no such type, or ids out of range.
    """
    if not machines:
        raise InputError("seeds are split over no rank", remedy="name the machine of each rank")
    numbers = {machine: number for number, machine in enumerate(dict.fromkeys(machines))}
    # By address: a machine that was restarted has another node's id, and its files still.
    served = [numbers.get(address, _NO_RANK) for address in dataset.addresses]
    homes = np.array(served, np.int64)[dataset.machines_of_nodes(ids, type)]
    ranks = np.array([numbers[machine] for machine in machines], np.int64)
    return [torch.from_numpy(share) for share in _shares(homes, ranks, equal=equal)]


def places_of_rank(
    dataset: ClusterDataset,
    ids: _Given,
    *,
    type: str | None = None,
    equal: bool = True,
    group: distributed.ProcessGroup | None = None,
) -> torch.Tensor:
    """The calling rank's places of `split_by_owner`: each rank calls it with the same seeds.

    Works wherever torch.distributed does: in Ray Train's workers, and in processes that call
    ``init_process_group`` themselves. One exchange of some 100 bytes a rank.

    Args:
        dataset: The dataset whose parts are served.
        ids: The seeds, as global ids: all of them, the same in every rank.
        type: The node type; may be left out where there is one only.
        equal: See `split_by_owner`.
        group: The ranks; None takes all.

    Returns:
        int64 (share,): places in `ids`.

    Raises:
        InputError: No process group, no such type, ids out of range; or ranks with other seeds,
            whose split would lose some and double others.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        raise InputError(
            "there are no ranks to split seeds over: torch.distributed is not initialised",
            remedy="call it in Ray Train's workers or after torch.distributed.init_process_group; "
            "elsewhere use split_by_owner",
        )
    asked = (_address(dataset), digest_of(type, equal, whole_ids(ids)))
    told: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(told, asked, group=group)
    others = [rank for rank, (_, seeds) in enumerate(told) if seeds != told[0][1]]
    if others:
        raise InputError(
            f"rank {others[0]} splits other seeds than rank 0 does",
            remedy="give every rank the same list, in the same order: shuffle with one seed",
        )
    machines = [machine for machine, _ in told]
    mine = distributed.get_rank(group)
    return split_by_owner(dataset, ids, machines, type=type, equal=equal)[mine]


def _address(dataset: ClusterDataset) -> str:
    """The address of this process's node, which Ray knows once the dataset has connected."""
    if not dataset.addresses:
        return ""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _shares(homes: _Ids, ranks: _Ids, *, equal: bool) -> list[_Ids]:
    """Places of each rank, by the machines of seeds and of ranks."""
    quotas = _even(homes.size, ranks.size)
    order = np.argsort(homes, kind="stable")
    held = [order[:0]] * ranks.size
    spare = []
    for machine in np.unique(homes):
        first, last = np.searchsorted(homes, [machine, machine + 1], sorter=order)
        here = np.flatnonzero(ranks == machine)
        kept = min(int(quotas[here].sum()), int(last - first))
        spare.append(order[first + kept : last])
        ends = np.cumsum(_even(kept, here.size))
        for rank, end, size in zip(here, ends, np.diff(ends, prepend=0), strict=True):
            held[rank] = order[first + end - size : first + end]
    return _filled(held, np.concatenate([order[:0], *spare]), quotas, equal=equal)


def _filled(held: list[_Ids], spare: _Ids, quotas: _Ids, *, equal: bool) -> list[_Ids]:
    lacking = quotas - [share.size for share in held]
    given = np.split(spare, np.cumsum(lacking)[:-1])
    shares = [np.concatenate(pair) for pair in zip(held, given, strict=True)]
    most = int(quotas.max())
    if not equal or not most:
        return shares
    any_seed = shares[0][:1]  # of the first rank, which has one if any has
    return [
        share if share.size == most else np.append(share, share[:1] if share.size else any_seed)
        for share in shares
    ]


def _even(count: int, shares: int) -> _Ids:
    """As many each as can be, the first ones one more; of no share nothing."""
    places = np.arange(shares, dtype=np.int64)
    return (count - places + shares - 1) // max(shares, 1)
