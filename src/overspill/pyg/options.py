"""How PyTorch Geometric says what to sample, turned into what the sampler is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch_geometric.sampler.base import NumNeighbors, SubgraphType
from torch_geometric.typing import EdgeTypeStr

from overspill.errors import InputError
from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.sampling.spec import SamplingSpec, fan_outs_for

FanOuts: TypeAlias = Sequence[int] | Mapping[EdgeType, Sequence[int]] | NumNeighbors
_SUBGRAPHS = tuple(kind.value for kind in SubgraphType)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """What a loader or a sampler is asked for, by PyTorch Geometric's names.

    Attributes:
        num_neighbors: One fan-out a hop, or such a list for each edge type; -1 for all.
        replace: Draw with replacement.
        subgraph_type: "directional", "bidirectional" or "induced".
        disjoint: Each seed's neighbourhood is a tree of its own.
        temporal_strategy: "uniform" or "last".
        time_attr: Node or edge array of times, or None.
        weight_attr: Edge array of weights, or None.
    """

    num_neighbors: FanOuts
    replace: bool = False
    subgraph_type: SubgraphType | str = "directional"
    disjoint: bool = False
    temporal_strategy: str = "uniform"
    time_attr: str | None = None
    weight_attr: str | None = None

    @property
    def subgraph(self) -> str:
        """The name of the subgraph's type (InputError)."""
        held = self.subgraph_type
        name = held.value if isinstance(held, SubgraphType) else held
        if name not in _SUBGRAPHS:
            raise InputError(
                f"there is no subgraph_type {name!r}",
                value=str(name),
                remedy=f"one of: {', '.join(_SUBGRAPHS)}",
            )
        return str(name)

    def spec(self, dataset: Dataset) -> SamplingSpec:
        """What the sampler is asked, edges remembered by their places (InputError)."""
        spec = SamplingSpec(
            num_neighbors=_fan_outs(dataset, self.num_neighbors),
            replace=bool(self.replace),
            disjoint=bool(self.disjoint) or self.time_attr is not None,
            weight=self.weight_attr,
            time=self.time_attr,
            temporal_strategy=self.temporal_strategy,  # type: ignore[arg-type] # the spec checks it
            induced=self.subgraph == "induced",
            edge_places=True,
        )
        dataset.sampler(spec)  # holds its names against the dataset, here and not in a worker
        return spec


def _fan_outs(dataset: Dataset, wanted: FanOuts) -> Mapping[EdgeType, tuple[int, ...]]:
    if isinstance(wanted, NumNeighbors):
        held, default = wanted.values, wanted.default
        if isinstance(held, Mapping):
            named = {_edge_type(key): hops for key, hops in held.items()}
            rest = {} if default is None else dict.fromkeys(dataset.edge_types, default)
            return fan_outs_for(dataset, rest | named)
        return fan_outs_for(dataset, held)
    if isinstance(wanted, Mapping):
        return fan_outs_for(dataset, {_edge_type(key): hops for key, hops in wanted.items()})
    return fan_outs_for(dataset, wanted)


def _edge_type(key: Any) -> Any:
    # PyG writes a type as "user__buys__item" too.
    return (
        key.to_tuple()
        if isinstance(key, EdgeTypeStr)
        else (tuple(key.split("__")) if isinstance(key, str) else key)
    )
