"""Which node and edge arrays a batch holds, chosen by name and held against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from overspill.errors import InputError
from overspill.graph.dataset import Dataset
from overspill.graph.reading.array_keys import ArrayKey, Owner
from overspill.pyg.sampling import is_hetero

Names = Sequence[str] | Mapping[Any, Sequence[str]] | None
_OF_NODES = (
    "batch", "batch_size", "dst_neg_index", "dst_pos_index", "input_id", "n_id", "num_nodes",
    "num_sampled_nodes", "seed_time", "src_index",
)  # fmt: skip
_OF_EDGES = (
    "e_id", "edge_index", "edge_label", "edge_label_index", "edge_label_time", "input_id",
    "num_sampled_edges",
)  # fmt: skip


def chosen_arrays(dataset: Dataset, features: Names, edge_features: Names) -> tuple[ArrayKey, ...]:
    """The arrays to gather for each batch.

    Args:
        dataset: The dataset.
        features: Names of node arrays, or such lists by node type; None for all.
        edge_features: The same of edge arrays by edge type.

    Returns:
        Keys of the arrays, those of nodes first.

    Raises:
        InputError: An unknown type or name, or a name that would hide a part of the batch.
    """
    nodes = {type: dataset.feature_names(type) for type in dataset.node_types}
    edges = {type: dataset.edge_feature_names(type) for type in dataset.edge_types}
    keys = [
        *_chosen(dataset, nodes, features, "node"),
        *_chosen(dataset, edges, edge_features, "edge"),
    ]
    _require_apart(dataset, keys)
    return tuple(keys)


def arrays_of(keys: Sequence[ArrayKey], owner: Owner) -> list[str]:
    """Names of the arrays of one type."""
    return [name for held, name in keys if held == owner]


def _chosen(
    dataset: Dataset, held: Mapping[Any, list[str]], wanted: Names, kind: str
) -> list[ArrayKey]:
    if wanted is None:
        return [(type, name) for type, names in held.items() for name in names]
    if isinstance(wanted, Mapping):
        unknown = [type for type in wanted if type not in held]
        if unknown:
            raise InputError(
                f"there is no {kind} type {unknown[0]!r}",
                path=str(dataset.path),
                value=str(unknown[0]),
                remedy=f"one of: {', '.join(map(str, held))}",
            )
        lists = {type: _listed(names) for type, names in wanted.items()}
        for type, names in lists.items():
            _require_held(dataset, held[type], names, kind)
        return [(type, name) for type in held for name in lists.get(type, [])]
    names = _listed(wanted)
    every = list(dict.fromkeys(name for there in held.values() for name in there))
    _require_held(dataset, every, names, kind)
    return [(type, name) for type, there in held.items() for name in names if name in there]


def _listed(names: Any) -> list[str]:
    return list(dict.fromkeys([names] if isinstance(names, str) else names))


def _require_held(dataset: Dataset, held: list[str], names: list[str], kind: str) -> None:
    for name in names:
        if name not in held:
            raise InputError(
                f"no {kind} array is called {name!r}",
                path=str(dataset.path),
                value=str(name),
                remedy=f"one of: {', '.join(held) or '(there is none)'}",
            )


def _require_apart(dataset: Dataset, keys: list[ArrayKey]) -> None:
    """One batch of one type holds all names side by side; with types, each type its own."""
    together = not is_hetero(dataset)
    seen: set[Any] = set()
    for owner, name in keys:
        of_nodes = isinstance(owner, str)
        kind, option = ("node", "features") if of_nodes else ("edge", "edge_features")
        taken = (*_OF_NODES, *_OF_EDGES) if together else _OF_NODES if of_nodes else _OF_EDGES
        if name in taken:
            raise InputError(
                f"the {kind} array {name!r} would hide a part of the batch of that name",
                path=str(dataset.path),
                remedy=f"leave it out by {option}=[...], or build the dataset with another name",
            )
        if together and name in seen:
            raise InputError(
                f"a node array and an edge array are both called {name!r}",
                path=str(dataset.path),
                remedy="leave one out by features=[...] or edge_features=[...]",
            )
        seen.add(name)
