"""What people pass to a loader: PyTorch Geometric's habits, answered with what to do here."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Sampler

from overspill.errors import InputError
from overspill.graph.dataset import Dataset
from overspill.graph.parts import require_whole

_OURS = ("dataset", "batch_sampler", "collate_fn")
# Arguments of PyG's loaders that this one does not have, and what to do about each.
_ABSENT = {
    "data": "pass the dataset first, as opened by open_dataset",
    "directed": "leave it out: edges are the sampled ones, directed to the seeds",
    "disjoint": "leave it out: neighbourhoods of a batch share their nodes",
    "filter_per_worker": "leave it out: features are always gathered in the workers",
    "input_time": "leave it out: sampling is uniform, not temporal",
    "is_sorted": "leave it out: edges are sorted by destination in the dataset",
    "neighbor_sampler": "leave it out: the loader samples by itself",
    "subgraph_type": "leave it out: edges are the sampled ones, directed to the seeds",
    "temporal_strategy": "leave it out: sampling is uniform, not temporal",
    "time_attr": "leave it out: sampling is uniform, not temporal",
    "transform_sampler_output": "use transform, which gets the finished batch",
    "weight_attr": "leave it out: sampling is uniform, not weighted",
}


def require_dataset(dataset: object) -> None:
    """Refuse what is no dataset that can be sampled as a whole, with its reason (InputError)."""
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"the loader wants an opened dataset, not {type(dataset).__name__}",
            value=str(dataset)[:80],
            remedy="open one: NeighborLoader(ov.open_dataset(path), ...)",
        )
    require_whole(dataset.part, dataset.path)
    if (len(dataset.node_types), len(dataset.edge_types)) != (1, 1):
        raise InputError(
            f"the loader samples one node type and one edge type; {dataset.path} has node types "
            f"{', '.join(dataset.node_types)} and {len(dataset.edge_types)} edge types",
            path=str(dataset.path),
            remedy="build the edges of one type by themselves, for this version's loader",
        )
    layouts = dataset.edge_record().layouts
    if "csc" not in layouts:
        raise InputError(
            f"the loader samples in-neighbours, layout csc; {dataset.path} has "
            f"{', '.join(layouts)}",
            path=str(dataset.path),
            remedy='build with layout="csc", or with both: layout=("csc", "csr")',
        )


def require_known(
    num_workers: object, transform: object, prefetch_factor: object, options: dict[str, Any]
) -> None:
    """Refuse arguments of another type, and those that only PyG's loaders have (InputError)."""
    if type(num_workers) is not int or num_workers < 0:
        raise InputError(
            f"num_workers={num_workers!r} is not a number of processes",
            remedy="give 0 to make the batches in this process, or a whole number above",
        )
    if transform is not None and not callable(transform):
        raise InputError(
            f"transform={transform!r} cannot be called", remedy="give a function of a batch"
        )
    if prefetch_factor is not None and (type(prefetch_factor) is not int or prefetch_factor < 1):
        raise InputError(
            f"prefetch_factor={prefetch_factor!r} is not a number of batches",
            remedy="give 1 or more, or leave it out",
        )
    for name in options:
        if name in _ABSENT:
            raise InputError(f"NeighborLoader has no argument {name!r}", remedy=_ABSENT[name])
        if name in _OURS:
            raise InputError(
                f"NeighborLoader makes its own {name}",
                remedy="leave it out; order the seeds by input_nodes, shuffle or sampler",
            )


def chosen_order(shuffle: bool, sampler: Sampler[int] | None) -> bool | Sampler[int]:
    """The order of the seeds: shuffled or not, or a sampler's; not both (InputError)."""
    if sampler is not None and shuffle:
        raise InputError(
            "shuffle and sampler exclude each other", remedy="leave one of the two out"
        )
    return bool(shuffle) if sampler is None else sampler
