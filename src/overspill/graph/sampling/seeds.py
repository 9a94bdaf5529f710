"""The seeds of a batch and their times, held against the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import InputError
from overspill.graph.node_ids import require_within, whole_ids

_Ids = npt.NDArray[np.int64]
Given = npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]
Looked = Callable[[str, _Ids], _Ids | None]


def seeds_by_type(seeds: Given, counts: Mapping[str, int], alone: str | None) -> dict[str, _Ids]:
    """Check seeds.

    Args:
        seeds: Ids of one node type, or ids by node type.
        counts: Nodes of each type.
        alone: The type that ids without one belong to; None where there are several.

    Returns:
        Node type -> int64 ids, in the order given.

    Raises:
        InputError: An unknown type, no type where there are several, ids out of range.
    """
    if not isinstance(seeds, Mapping):
        if alone is None:
            raise InputError(
                "seeds of which node type was not said",
                remedy=f"pass them by type: {{{next(iter(counts), '')!r}: ids}}",
            )
        seeds = {alone: seeds}
    held = {}
    for name, given in seeds.items():
        if name not in counts:
            raise InputError(
                f"there is no node type {name!r}",
                value=str(name),
                remedy=f"one of: {', '.join(counts)}",
            )
        held[name] = whole_ids(given)
        what = "seeds" if len(counts) == 1 else f"seeds of node type {name!r}"
        require_within(held[name], counts[name], what=what)
    return held


def times_of_trees(seeds: Mapping[str, _Ids], times: Given | None, looked: Looked) -> _Ids:
    """The time of each seed, and so of its tree.

    Args:
        seeds: As `seeds_by_type` gives them.
        times: Times in the shape of the seeds; None takes those of the nodes.
        looked: Looks times of nodes up; None for a type without.

    Returns:
        int64 (seeds of all types,).

    Raises:
        InputError: No times where nodes have none, no whole numbers, or another number of them.
    """
    if times is not None and not isinstance(times, Mapping):
        times = dict.fromkeys(list(seeds)[:1], times)
    parts = []
    for name, ids in seeds.items():
        given = None if times is None else times.get(name)
        parts.append(_looked_up(name, ids, looked) if given is None else _checked(name, ids, given))
    if times is not None and set(times) - set(seeds):
        raise InputError(
            f"there are times of seeds of types {sorted(times)}, and seeds of {sorted(seeds)}",
            remedy="pass times for the types of the seeds alone",
        )
    return np.concatenate([np.empty(0, np.int64), *parts])


def _looked_up(name: str, ids: _Ids, looked: Looked) -> _Ids:
    found = looked(name, ids)
    if found is None:
        raise InputError(
            f"no times were given for the seeds of node type {name!r}, which has none of its own",
            remedy="pass seed_times",
        )
    return found


def _checked(name: str, ids: _Ids, given: Any) -> _Ids:
    held = np.asarray(given)
    if held.dtype.kind not in "iu" or held.ndim != 1 or held.dtype == np.uint64:
        raise InputError(
            f"times of the seeds of node type {name!r} are {held.dtype} {held.shape}, not one "
            "whole number each",
            value=str(held.dtype),
            remedy="convert them to int64",
        )
    if held.size != ids.size:
        raise InputError(
            f"there are {held.size} times for {ids.size} seeds of node type {name!r}",
            remedy="pass one time a seed",
        )
    return held.astype(np.int64)
