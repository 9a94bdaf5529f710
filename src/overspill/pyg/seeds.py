"""The nodes to make batches for: which there are, and what a worker is told of a batch of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError
from overspill.graph.dataset import Dataset
from overspill.graph.node_ids import require_within, whole_ids
from overspill.pyg.sampling import is_hetero

_Ids = npt.NDArray[np.int64]
InputNodes = (
    torch.Tensor | Iterable[int] | str | tuple[str, torch.Tensor | Iterable[int] | None] | None
)


@dataclass(frozen=True, kw_only=True)
class NodeRequest:
    """What a worker needs to know to make a batch: 16 bytes a seed, 24 with times.

    Attributes:
        epoch: Counted from 0.
        index: The batch's place in its epoch.
        input_ids: int64 (batch,), the seeds' places among the input nodes.
        seeds: int64 (batch,), node ids.
        times: int64 (batch,), their times; None where they have their own or none.
        group: Where a worker begins a group of batches: all of them, this one first.
        following: There too: the group that it will be asked for after that one.
        packed: Whether it is a batch of the fixed set that a pack holds.
    """

    epoch: int
    index: int
    input_ids: _Ids
    seeds: _Ids
    times: _Ids | None = None
    group: tuple[NodeRequest, ...] = ()
    following: tuple[NodeRequest, ...] = ()
    packed: bool = False

    def arrays(self) -> list[_Ids]:
        """Everything that the batch is made of."""
        return [self.input_ids, self.seeds, *([] if self.times is None else [self.times])]


class NodeInputs:
    """The input nodes of a loader: all nodes of a type, a list of ids, or a boolean mask.

    All nodes take no memory; a list is held once, in the parent.

    Args:
        dataset: The dataset.
        nodes: None or the type's name for all, ids, a mask of shape (nodes,), or a pair of the
            type's name and one of these; with several types the name is needed.
        times: Whole numbers, one an input node, or None.
        input_id: What to call each input node in `input_ids`; None for its place.

    Raises:
        InputError: Ids out of range, a mask or times of another length, or no such type.
    """

    def __init__(
        self,
        dataset: Dataset,
        nodes: InputNodes,
        *,
        times: torch.Tensor | None = None,
        input_id: torch.Tensor | None = None,
    ) -> None:
        type, listed = _typed(dataset, nodes)
        record = dataset.node_record(type)
        self.node_type = record.name
        self._nodes: _Ids | None = None
        masked = isinstance(listed, torch.Tensor | np.ndarray | list) and _is_mask(listed)
        if listed is not None:
            self._nodes = _ids(listed, record.count)
            require_within(self._nodes, record.count, what=f"input nodes of type {record.name!r}")
        self._count = record.count if self._nodes is None else self._nodes.size
        self._times = self._one_each(times, "input_time")
        # PyG names a masked seed by its node, any other by its place in the list.
        self._names = self._nodes if masked else None
        if input_id is not None:
            self._names = self._one_each(input_id, "input_id")

    def __len__(self) -> int:
        return self._count

    @property
    def distinct(self) -> bool:
        """Whether no node is listed twice: a sort of the list, 8 bytes a node for its span."""
        return self._nodes is None or np.unique(self._nodes).size == self._nodes.size

    def request(self, epoch: int, index: int, places: _Ids) -> NodeRequest:
        """Ask for the batch of the input nodes at these places."""
        return NodeRequest(
            epoch=epoch,
            index=index,
            input_ids=places if self._names is None else self._names[places],
            seeds=places if self._nodes is None else self._nodes[places],
            times=None if self._times is None else self._times[places],
        )

    def digest(self) -> str:
        """A hash of the type, the nodes, their times and names."""
        return digest_of(self.node_type, self._count, self._nodes, self._times, self._names)

    def _one_each(self, values: torch.Tensor | None, name: str) -> _Ids | None:
        if values is None:
            return None
        require_whole(values, name)
        held = whole_ids(values)
        if held.size != self._count:
            raise InputError(
                f"{name} has {held.size} entries for {self._count} input nodes",
                remedy="give one an input node, in their order",
            )
        return held


def require_whole(values: Any, name: str) -> None:
    """Refuse numbers that are not whole, by the name of the argument (InputError)."""
    held = torch.as_tensor(values)
    if held.is_floating_point() or held.dtype == torch.bool:
        raise InputError(f"{name} holds {held.dtype}", remedy=f"give {name} as whole numbers")


def digest_of(*parts: Any) -> str:
    """A hash of arrays, absent ones, and what prints itself: one pass over the arrays."""
    held = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            held.update(f"{part.dtype}{part.shape}".encode())
            held.update(np.ascontiguousarray(part).data)
        else:
            held.update(repr(part).encode())
    return held.hexdigest()


def _typed(dataset: Dataset, nodes: InputNodes) -> tuple[str, Any]:
    if isinstance(nodes, str):
        return _known(dataset, nodes), None
    if isinstance(nodes, tuple | list) and nodes and isinstance(nodes[0], str):
        if len(nodes) != 2:
            raise InputError(
                f"input_nodes={nodes!r} is no pair of a node type and ids",
                remedy='write input_nodes=("user", ids)',
            )
        return _known(dataset, nodes[0]), nodes[1]
    if is_hetero(dataset) and len(dataset.node_types) > 1:
        raise InputError(
            "input_nodes names no node type, and the dataset has several",
            path=str(dataset.path),
            remedy=f"write input_nodes=({dataset.node_types[0]!r}, ids); the types are "
            f"{', '.join(dataset.node_types)}",
        )
    return dataset.node_types[0], nodes


def _known(dataset: Dataset, type: str) -> str:
    if type not in dataset.node_types:
        raise InputError(
            f"input_nodes names the node type {type!r}, which there is not",
            path=str(dataset.path),
            value=type,
            remedy=f"one of: {', '.join(dataset.node_types)}; of one type pass the ids alone",
        )
    return type


def _ids(nodes: torch.Tensor | Iterable[int], count: int) -> _Ids:
    held = nodes if isinstance(nodes, torch.Tensor | np.ndarray) else list(nodes)
    if not _is_mask(held):
        return whole_ids(held)
    mask = np.asarray(held.cpu() if isinstance(held, torch.Tensor) else held)
    if mask.shape != (count,):
        raise InputError(
            f"the mask of input nodes has shape {mask.shape} for {count} nodes",
            remedy="give one entry a node",
        )
    return np.flatnonzero(mask)


def _is_mask(nodes: torch.Tensor | npt.NDArray[np.generic] | list[int]) -> bool:
    if isinstance(nodes, list):
        return bool(nodes) and isinstance(nodes[0], bool)
    return nodes.dtype in (torch.bool, np.bool_)
