"""What to sample: fan-outs an edge type, and in which way; checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np

from overspill.errors import InputError
from overspill.storage.manifest import Manifest
from overspill.storage.records import FileRecord
from overspill.storage.type_records import EdgeName

EdgeType = EdgeName
TemporalStrategy = Literal["uniform", "last"]
FanOuts = Sequence[int] | Mapping[EdgeType, Sequence[int]]
# What float64 holds in order, and int64 without loss.
_TIME_DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_WEIGHT_DTYPES = ("float16", "float32", "float64", "uint64", *_TIME_DTYPES)


class Described(Protocol):
    """What has a manifest: a dataset."""

    path: Path
    manifest: Manifest


@dataclass(frozen=True)
class SampleLimit:
    """The largest neighbourhood that memory was planned for, all types together."""

    nodes: int
    edges: int


@dataclass(frozen=True, kw_only=True)
class SamplingSpec:
    """How neighbourhoods are sampled; it pickles, and is held against a dataset by `ds.sampler`.

    Attributes:
        num_neighbors: For every edge type to follow one fan-out a hop; -1 for all in-edges. All
            types have the same number of hops. `fan_outs_for` makes it of what people write.
        replace: Draw with replacement: exactly the fan-out, where there is anything to draw from.
        disjoint: Make each occurrence of a seed a tree of its own, which shares no node with the
            others.
        weight: Edge array of weights: an edge is drawn in proportion to its own. Edge types without
            it are sampled uniformly. A fan-out of -1, or of a row's edges or more, takes all of a
            row, those of weight 0 too, and does not look at its weights: bad ones are noticed where
            a choice is made.
        time: Node array or edge array of integer times: only edges to nodes, or edges, not after
            the seed's time are followed. Types without it are not held to it. Implies `disjoint`.
        temporal_strategy: "uniform", or "last" for the most recent; of equal times the later place.
        induced: Give all edges between the nodes of a batch instead of the sampled ones.
        edge_places: Remember which edges were taken, as places in the order of "csc".

    Raises:
        InputError: Fan-outs of the wrong kind or of unequal lengths, or options that exclude each
            other.
    """

    num_neighbors: Mapping[EdgeType, tuple[int, ...]]
    replace: bool = False
    disjoint: bool = False
    weight: str | None = None
    time: str | None = None
    temporal_strategy: TemporalStrategy = "uniform"
    induced: bool = False
    edge_places: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.num_neighbors, Mapping):
            raise InputError(
                f"num_neighbors must map edge types to fan-outs, not {self.num_neighbors!r}",
                remedy="make it by fan_outs_for(dataset, [15, 10])",
            )
        held = {edge: check_fan_outs(fans) for edge, fans in self.num_neighbors.items()}
        _require_one_length(held)
        object.__setattr__(self, "num_neighbors", held)
        _require_meaning(self)

    @property
    def num_hops(self) -> int:
        """Hops of every edge type."""
        return len(next(iter(self.num_neighbors.values())))

    @property
    def in_trees(self) -> bool:
        """Whether each seed has a tree of its own."""
        return self.disjoint or self.time is not None


def fan_outs_for(dataset: Described, num_neighbors: FanOuts) -> dict[EdgeType, tuple[int, ...]]:
    """Turn fan-outs as people write them into one list for every edge type.

    Args:
        dataset: Whose edge types they are for.
        num_neighbors: One list for all edge types, or a list for each of them by its
            (source, relation, target).

    Returns:
        Edge type -> fan-outs, in the order of the dataset.

    Raises:
        InputError: A bad fan-out, an unknown edge type, one that is missing, unequal lengths.
    """
    there = dataset.manifest.edge_types
    if not isinstance(num_neighbors, Mapping):
        fans = check_fan_outs(num_neighbors)
        return dict.fromkeys(there, fans)
    require_edge_types(num_neighbors, dataset)
    missing = [edge for edge in there if edge not in num_neighbors]
    if missing:
        hops = len(next(iter(num_neighbors.values()), [0, 0]))
        raise InputError(
            f"num_neighbors has no fan-outs for edge type {missing[0]}",
            path=str(dataset.path),
            value=str(missing[0]),
            remedy=f"give {[0] * hops} to an edge type that is not to be followed",
        )
    held = {edge: check_fan_outs(num_neighbors[edge]) for edge in there}
    _require_one_length(held)
    return held


def spec_for(
    dataset: Described, what: SamplingSpec | FanOuts, edge_type: EdgeType | None, *, replace: bool
) -> SamplingSpec:
    """The specification that people mean, its edge types held against the dataset.

    Args:
        dataset: What is to be sampled.
        what: A specification, or fan-outs alone.
        edge_type: With a list of fan-outs, the only edge type to follow.
        replace: With fan-outs, draw with replacement.

    Raises:
        InputError: Bad fan-outs, an unknown edge type, or options beside a specification.
    """
    if isinstance(what, SamplingSpec):
        if replace or edge_type is not None:
            raise InputError(
                "replace and edge_type stand beside a SamplingSpec, which says both itself",
                remedy="put them into the SamplingSpec",
            )
        spec = what
    elif edge_type is None:
        spec = SamplingSpec(num_neighbors=fan_outs_for(dataset, what), replace=replace)
    elif isinstance(what, Mapping):
        raise InputError(
            "fan-outs by edge type and an edge type were given", remedy="leave one of the two out"
        )
    else:
        spec = SamplingSpec(num_neighbors={edge_type: check_fan_outs(what)}, replace=replace)
    require_edge_types(spec.num_neighbors, dataset)
    return spec


def check_fan_outs(num_neighbors: Sequence[int]) -> tuple[int, ...]:
    """Check a list of fan-outs, one a hop, each -1 (all), 0 or more (InputError)."""
    if isinstance(num_neighbors, str | bytes) or not isinstance(num_neighbors, Sequence):
        raise InputError(
            f"num_neighbors must be a list with one fan-out a hop, not {num_neighbors!r}",
            remedy="write num_neighbors=[15, 10], or [-1, -1] for all neighbours",
        )
    for hop, fan_out in enumerate(num_neighbors):
        whole = isinstance(fan_out, int | np.integer) and not isinstance(fan_out, bool)
        if not whole or not -1 <= fan_out < 2**31:
            raise InputError(
                f"the fan-out of hop {hop} must be -1 (all neighbours) or a whole number from 0 "
                f"to {2**31 - 1}, not {fan_out!r}",
                value=str(fan_out),
                remedy="write num_neighbors=[15, 10], or [-1, -1] for all neighbours",
            )
    if not num_neighbors:
        raise InputError(
            "num_neighbors is empty: no hop to sample", remedy="give one fan-out a hop"
        )
    return tuple(int(fan_out) for fan_out in num_neighbors)


def require_edge_types(named: Mapping[EdgeType, object], dataset: Described) -> None:
    """Refuse edge types that the dataset lacks, or has without their in-edges (InputError)."""
    there = dataset.manifest.edge_types
    for edge in named:
        if edge not in there:
            raise InputError(
                f"there is no edge type {edge!r}",
                path=str(dataset.path),
                value=str(edge),
                remedy=f"one of: {', '.join(map(str, there)) or '(none)'}",
            )
        if "csc" not in there[edge].layouts:
            raise InputError(
                f"edge type {edge} has no layout 'csc', whose in-edges sampling follows",
                path=str(dataset.path),
                remedy=f"build with layout='csc'; it has {', '.join(there[edge].layouts)}",
            )


def weight_records(spec: SamplingSpec, dataset: Described) -> dict[EdgeType, FileRecord]:
    """The weights of each edge type that has them (InputError: no type has, or no numbers)."""
    name = spec.weight
    if name is None:
        return {}
    held = _edge_arrays(spec, dataset, name)
    if not held:
        raise _absent("weight", name, dataset, _edge_names(spec, dataset))
    for edge, record in held.items():
        _require_vector(record, _WEIGHT_DTYPES, f"weights {name!r} of edge type {edge}")
    return held


def time_records(
    spec: SamplingSpec, dataset: Described
) -> tuple[dict[str, FileRecord], dict[EdgeType, FileRecord]]:
    """The times of node types, or of edge types (InputError: both, none, or no integers)."""
    name = spec.time
    if name is None:
        return {}, {}
    nodes = dataset.manifest.node_types
    of_nodes = {kind: held.arrays[name] for kind, held in nodes.items() if name in held.arrays}
    of_edges = _edge_arrays(spec, dataset, name)
    if of_nodes and of_edges:
        raise InputError(
            f"time {name!r} is an array of nodes and of edges",
            path=str(dataset.path),
            remedy="build the dataset with another name for one of the two",
        )
    if not of_nodes and not of_edges:
        of_any_node = {array for held in nodes.values() for array in held.arrays}
        raise _absent("time", name, dataset, of_any_node | _edge_names(spec, dataset))
    for kind, record in (*of_nodes.items(), *of_edges.items()):
        what = f"node type {kind!r}" if isinstance(kind, str) else f"edge type {kind}"
        _require_vector(record, _TIME_DTYPES, f"times {name!r} of {what}")
    return of_nodes, of_edges


def _edge_arrays(spec: SamplingSpec, dataset: Described, name: str) -> dict[EdgeType, FileRecord]:
    there = dataset.manifest.edge_types
    arrays = {edge: there[edge].arrays.get("csc", {}) for edge in spec.num_neighbors}
    return {edge: held[name] for edge, held in arrays.items() if name in held}


def _edge_names(spec: SamplingSpec, dataset: Described) -> set[str]:
    there = dataset.manifest.edge_types
    return {name for edge in spec.num_neighbors for name in there[edge].arrays.get("csc", {})}


def _absent(option: str, name: str, dataset: Described, names: set[str]) -> InputError:
    return InputError(
        f"{option}={name!r}: no array of that name belongs to what is sampled",
        path=str(dataset.path),
        value=str(name),
        remedy=f"one of: {', '.join(sorted(names)) or '(there is none)'}; or build the dataset "
        f"with it, or leave {option} out",
    )


def _require_vector(record: FileRecord, dtypes: tuple[str, ...], what: str) -> None:
    if record.dtype not in dtypes or len(record.shape) != 1:
        raise InputError(
            f"{what} are {record.dtype} {record.shape}, not one number each of {', '.join(dtypes)}",
            path=record.path,
            value=record.dtype,
            remedy="convert them, and build the dataset with what comes of it",
        )


def _require_one_length(held: Mapping[EdgeType, tuple[int, ...]]) -> None:
    if not held:
        raise InputError("num_neighbors names no edge type", remedy="name those to follow")
    lengths = {len(fans) for fans in held.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{edge}: {len(fans)}" for edge, fans in held.items())
        raise InputError(
            f"num_neighbors has lists of different lengths: {told}",
            remedy="give every edge type one fan-out a hop; 0 where it is not followed",
        )


def _require_meaning(spec: SamplingSpec) -> None:
    for name in ("replace", "disjoint", "induced", "edge_places"):
        if not isinstance(getattr(spec, name), bool):
            raise InputError(
                f"{name}={getattr(spec, name)!r} is neither True nor False",
                remedy="say True or False",
            )
    for name in ("weight", "time"):
        value = getattr(spec, name)
        if value is not None and not isinstance(value, str):
            raise InputError(
                f"{name}={value!r} is no name of an array",
                value=str(value),
                remedy="give the name of an edge array, as a string",
            )
    if spec.temporal_strategy not in get_args(TemporalStrategy):
        raise InputError(
            f"temporal_strategy={spec.temporal_strategy!r} is unknown",
            value=str(spec.temporal_strategy),
            remedy='one of: "uniform", "last"',
        )
    if spec.temporal_strategy == "last" and spec.time is None:
        raise InputError(
            "temporal_strategy='last' takes the most recent, and no time is named",
            remedy="name the array of times, or leave the strategy out",
        )
    if spec.temporal_strategy == "last" and spec.weight is not None:
        raise InputError(
            "temporal_strategy='last' takes the most recent, whatever their weights",
            remedy="leave out the weight, or take temporal_strategy='uniform'",
        )
