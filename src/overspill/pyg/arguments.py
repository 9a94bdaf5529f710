"""What people pass to a loader: PyTorch Geometric's habits, answered with what to do here."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import multiprocessing
from torch.utils.data import Sampler

from overspill.errors import InputError
from overspill.graph.dataset import Dataset
from overspill.graph.parts import require_whole

_OURS = ("dataset", "batch_sampler", "collate_fn")
# Arguments of PyG's loaders that these do not have, and what to do about each.
_ABSENT = {
    "custom_cls": "leave it out, or make what you need of the finished batch by transform",
    "neighbor_sampler": "leave it out: the loader samples by itself; PyG's own NodeLoader and "
    "LinkLoader take overspill.pyg.NeighborSampler",
    "sample_direction": "leave it out: edges are followed against their direction",
    "share_memory": "leave it out: workers map the dataset, nothing is copied to them",
}
# Those that may be passed where they ask for what is done anyway: which value that is, and why.
_FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "directed": ((True,), 'pass subgraph_type="induced" instead'),
    "filter_per_worker": (
        (True, None),
        "leave it out: features are always gathered where the batch is made",
    ),
    "is_sorted": ((True, False), "leave it out: a dataset's edges are sorted by target"),
}


def require_dataset(dataset: object, loader: str) -> None:
    """Refuse what is no dataset that can be sampled as a whole, with its reason (InputError)."""
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"the loader wants an opened dataset, not {type(dataset).__name__}",
            value=str(dataset)[:80],
            remedy=f"open one: {loader}(ov.open_dataset(path), ...)",
        )
    require_whole(dataset.part, dataset.path)
    for edge_type in dataset.edge_types:
        layouts = dataset.edge_record(edge_type).layouts
        if "csc" not in layouts:
            raise InputError(
                f"the loader samples in-neighbours, layout csc; {edge_type} in {dataset.path} has "
                f"{', '.join(layouts)}",
                path=str(dataset.path),
                remedy='build with layout="csc", or with both: layout=("csc", "csr")',
            )
    if not dataset.edge_types:
        raise InputError(
            f"{dataset.path} has no edges to sample", remedy="build the dataset with edges"
        )


def take_habits(options: dict[str, Any], loader: str) -> None:
    """Refuse arguments that only PyG's loaders have; take out those that say what is done anyway.

    Args:
        options: Arguments by name, changed in place.
        loader: The loader's name, for messages.

    Raises:
        InputError: Names the argument and what to do.
    """
    for name in list(options):
        if name in _ABSENT and options.pop(name) is not None:
            raise InputError(f"{loader} has no argument {name!r}", remedy=_ABSENT[name])
        if name in _FIXED:
            allowed, remedy = _FIXED[name]
            value = options.pop(name)
            if not any(value is held for held in allowed):
                raise InputError(f"{loader} has no {name}={value!r}", remedy=remedy)
        if name in _OURS:
            raise InputError(
                f"{loader} makes its own {name}",
                remedy="leave it out; order the inputs by shuffle or sampler",
            )


def require_counts(num_workers: object, prefetch_factor: object) -> None:
    """Refuse numbers of processes and batches that are none (InputError)."""
    if type(num_workers) is not int or num_workers < 0:
        raise InputError(
            f"num_workers={num_workers!r} is not a number of processes",
            remedy="give 0 to make the batches in this process, or a whole number above",
        )
    if prefetch_factor is not None and (type(prefetch_factor) is not int or prefetch_factor < 1):
        raise InputError(
            f"prefetch_factor={prefetch_factor!r} is not a number of batches",
            remedy="give 1 or more, or leave it out",
        )


def start_method(context: Any) -> str:
    """How workers of a context start; None is the process's own way."""
    if context is None or isinstance(context, str):
        return context or str(multiprocessing.get_start_method())
    return str(context.get_start_method())


def chosen_context(context: Any, dataset: Dataset, num_workers: int) -> Any:
    """How workers start: as asked for; by spawn where nothing is said and a fork does not do.

    Raises:
        InputError: A fork is asked for, and the dataset would not survive it.
    """
    if not num_workers or dataset.survives_fork:
        return context
    if context is None:
        return "spawn"
    if start_method(context) == "fork":
        raise InputError(
            "workers that are forked cannot read a dataset of other machines: Ray's connection "
            "does not survive a fork",
            remedy='leave multiprocessing_context out, or pass "spawn" or "forkserver"',
        )
    return context


def require_number(name: str, batches: object) -> None:
    """Refuse a number of batches that is none; None is taken (InputError)."""
    if batches is not None and (type(batches) is not int or batches < 0):
        raise InputError(
            f"{name}={batches!r} is not a number of batches", remedy="give 0 or more, or None"
        )


def chosen_seed(seed: object) -> int:
    """A seed as a whole number of Python's (InputError where it is none)."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(
            f"seed={seed!r} is not a whole number",
            value=str(seed),
            remedy="give a whole number, or leave it out to draw one from torch's generator",
        )
    return int(seed)


def chosen_prefetch(prefetch_batches: object, prefetch_factor: int | None, workers: int) -> int:
    """Batches to make ahead, of each worker, or of the thread where there is no worker.

    Args:
        prefetch_batches: Batches to make ahead in all, or None.
        prefetch_factor: torch's argument: of each worker, or None.
        workers: Worker processes.

    Returns:
        With workers torch's prefetch factor, 2 by default; without, the batches that a thread makes
        ahead, 0 by default.

    Raises:
        InputError: No such number, or both are given.
    """
    if prefetch_batches is None:
        if prefetch_factor is not None and not workers:
            raise InputError(
                "prefetch_factor is of workers, and num_workers is 0",
                remedy="pass prefetch_batches to make batches ahead in a thread",
            )
        return prefetch_factor or (2 if workers else 0)
    if type(prefetch_batches) is not int or prefetch_batches < 0:
        raise InputError(
            f"prefetch_batches={prefetch_batches!r} is not a number of batches",
            remedy="give 0 or more, or leave it out",
        )
    if prefetch_factor is not None:
        raise InputError(
            "prefetch_batches and prefetch_factor exclude each other",
            remedy="leave one of the two out",
        )
    # Of workers each has at least one batch to make.
    return max(-(-prefetch_batches // workers), 1) if workers else prefetch_batches


def chosen_lookahead(lookahead: object) -> int:
    """Batches of a group that is read together; 0 and 1 for none (InputError)."""
    if type(lookahead) is not int or lookahead < 0:
        raise InputError(
            f"lookahead={lookahead!r} is not a number of batches",
            remedy="give the number of batches to read together, or 0",
        )
    return max(lookahead, 1)


def chosen_order(shuffle: bool | None, sampler: Sampler[int] | None) -> bool | Sampler[int]:
    """The order of the inputs: shuffled or not, or a sampler's; not both (InputError)."""
    if sampler is not None and shuffle:
        raise InputError(
            "shuffle and sampler exclude each other", remedy="leave one of the two out"
        )
    return bool(shuffle) if sampler is None else sampler
