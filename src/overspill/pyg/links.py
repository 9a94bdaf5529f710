"""The links to make batches for: which there are, and what a worker is told of a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError
from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.node_ids import require_within, whole_ids
from overspill.pyg.edge_files import EdgeNumbers, keeps_edge_ids
from overspill.pyg.sampling import is_hetero
from overspill.pyg.seeds import digest_of, require_whole

_Ids = npt.NDArray[np.int64]
InputEdges = (
    torch.Tensor
    | npt.NDArray[Any]
    | EdgeType
    | tuple[EdgeType, torch.Tensor | npt.NDArray[Any] | None]
    | None
)


@dataclass(frozen=True, kw_only=True)
class LinkRequest:
    """What a worker needs to know to make a batch: 24 bytes a link, and its label and time.

    Attributes:
        epoch: Counted from 0.
        index: The batch's place in its epoch.
        input_ids: int64 (batch,), the links' places among the inputs.
        ends: int64 (2, batch), sources and targets; None where the links are the dataset's own
            edges, and `places` tells which.
        places: int64 (batch,), places among the inputs.
        labels: (batch, ...), or None.
        times: int64 (batch,), or None.
        group: Where a worker begins a group of batches: all of them, this one first.
        following: There too: the group that it will be asked for after that one.
        packed: Whether it is a batch of the fixed set that a pack holds.
    """

    epoch: int
    index: int
    input_ids: _Ids
    ends: _Ids | None
    places: _Ids
    labels: npt.NDArray[Any] | None = None
    times: _Ids | None = None
    group: tuple[LinkRequest, ...] = ()
    following: tuple[LinkRequest, ...] = ()
    packed: bool = False

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Everything that the batch is made of."""
        held = (self.input_ids, self.places, self.ends, self.labels, self.times)
        return [part for part in held if part is not None]


class LinkInputs:
    """The input links of a loader: pairs of nodes, or all edges of a type.

    All edges take no memory: a batch's ends are read from the dataset where it is made. Pairs are
    held once, in the parent.

    Args:
        dataset: The dataset.
        links: (2, links) sources and targets; an edge type, for all of its edges in the dataset's
            order (by target); a pair of an edge type and one of these; None for all edges where
            there is one edge type.
        labels: (links, ...), or None.
        times: Whole numbers (links,), or None.
        input_id: What to call each link in `input_ids`; None for its place.

    Labels, times and names of a type's own edges are in the order of the input's edges: they are
    found by the edge ids that the dataset keeps, read for each batch, and once as a whole.

    Raises:
        InputError: Ends out of range, another shape, or no such edge type; labels, times or names
            of edges whose ids are not kept.
        StaleFileError: A file was cut, replaced or removed.
        MappingError: The disk refused to read.
    """

    def __init__(
        self,
        dataset: Dataset,
        links: InputEdges,
        *,
        labels: torch.Tensor | None = None,
        times: torch.Tensor | None = None,
        input_id: torch.Tensor | None = None,
    ) -> None:
        type, ends = _typed(dataset, links)
        record = dataset.edge_record(type)
        self.edge_type: EdgeType = record.key
        self._ends = None if ends is None else _ends(dataset, record.key, ends)
        self._count = record.count if self._ends is None else self._ends.shape[1]
        given = {"edge_label": labels, "edge_label_time": times, "input_id": input_id}
        told = [name for name, values in given.items() if values is not None]
        self._numbers = _EdgesOfInput(dataset, type, told[0]) if told and ends is None else None
        self._labels = None if labels is None else self._one_each(_values(labels), "edge_label")
        self._times = self._whole(times, "edge_label_time")
        self._names = self._whole(input_id, "input_id")

    def __len__(self) -> int:
        return self._count

    @property
    def distinct(self) -> bool:
        """Whether no link is known to come twice; of a list that is not looked into."""
        return self._ends is None

    def digest(self) -> str:
        """A hash of the type, the links, their labels, times and names."""
        return digest_of(
            self.edge_type, self._count, self._ends, self._labels, self._times, self._names
        )

    @property
    def label_bytes(self) -> int:
        """Bytes of a link's label; those of PyG's own where there is none."""
        held = self._labels
        return 4 if held is None else int(held.dtype.itemsize * np.prod(held.shape[1:], dtype=int))

    @property
    def has_labels(self) -> bool:
        """Whether links have labels."""
        return self._labels is not None

    def make_zero_negative(self) -> None:
        """Count labels up by one where the smallest is 0, so that 0 tells negatives, as PyG does.

        Costs a copy of the labels, int64 where their own type has no room for one more class.
        """
        held = self._labels
        if held is None or not held.size or held.min() != 0:
            return
        whole = held.dtype.kind in "iu"
        if held.dtype == np.bool_ or (whole and held.max() == np.iinfo(held.dtype).max):
            held = held.astype(np.int64)
        self._labels = held + np.ones((), held.dtype)

    def request(self, epoch: int, index: int, places: _Ids) -> LinkRequest:
        """Ask for the batch of the links at these places."""
        rows = places if self._numbers is None else self._numbers.at(places)
        return LinkRequest(
            epoch=epoch,
            index=index,
            input_ids=places if self._names is None else self._names[rows],
            ends=None if self._ends is None else self._ends[:, places],
            places=places,
            labels=None if self._labels is None else self._labels[rows],
            times=None if self._times is None else self._times[rows],
        )

    def _whole(self, values: torch.Tensor | None, name: str) -> _Ids | None:
        if values is None:
            return None
        require_whole(values, name)
        held: _Ids = self._one_each(whole_ids(values), name)
        return held

    def _one_each(self, held: npt.NDArray[Any], name: str) -> Any:
        if self._numbers is not None and held.ndim:
            self._numbers.require_one_each(held.shape[0], name)
        elif held.ndim == 0 or held.shape[0] != self._count:
            raise InputError(
                f"{name} has shape {held.shape} for {self._count} links",
                remedy="give one entry a link, in their order",
            )
        return held


class _EdgesOfInput:
    """Which edge of the input each edge of a dataset is, to find what is told of it."""

    def __init__(self, dataset: Dataset, edge_type: EdgeType, told: str) -> None:
        if not keeps_edge_ids(dataset, edge_type):
            raise InputError(
                f"{told} is given for the edges of type {edge_type}, and the dataset does not know "
                "their order in the input",
                path=str(dataset.path),
                remedy="build it with edge_ids=True, or pass the links as edge_label_index, or "
                "keep what is told of them as an edge array",
            )
        self._ids = EdgeNumbers(dataset, edge_type)
        self._count = dataset.edge_record(edge_type).count
        self._end = 0
        for start in range(0, self._count, _EDGES_A_PIECE):
            piece = np.arange(start, min(start + _EDGES_A_PIECE, self._count))
            self._end = max(self._end, int(self.at(piece).max()) + 1)

    def at(self, places: _Ids) -> _Ids:
        """Numbers in the input of edges by their places."""
        numbers = np.empty(places.size, np.int64)
        self._ids.write(np.ascontiguousarray(places), numbers)
        return numbers

    def require_one_each(self, count: int, name: str) -> None:
        """Refuse values that are not one an edge of the input, as far as that is known."""
        # Edges that were dropped at its end have left no number.
        whole = self._end == self._count
        if count < self._end or (whole and count > self._end):
            raise InputError(
                f"{name} has {count} entries for {self._end} edges of the input",
                remedy="give one an edge of the input, in its order, those that were dropped too",
            )


def _typed(dataset: Dataset, links: Any) -> tuple[EdgeType, Any]:
    if isinstance(links, tuple | list) and len(links) == 2 and links[0] is None:
        links = links[1]  # PyG's pair where edges have no type
    if isinstance(links, tuple | list) and links:
        if all(isinstance(part, str) for part in links):
            return _known(dataset, links), None
        if len(links) == 2 and isinstance(links[0], tuple | list) and _names(links[0]):
            return _known(dataset, links[0]), links[1]
    if is_hetero(dataset) and len(dataset.edge_types) > 1:
        raise InputError(
            "edge_label_index names no edge type, and the dataset has several",
            path=str(dataset.path),
            remedy=f"write edge_label_index=({dataset.edge_types[0]}, ends); the types are "
            f"{', '.join(map(str, dataset.edge_types))}",
        )
    return dataset.edge_types[0], links


def _names(parts: Sequence[Any]) -> bool:
    return bool(parts) and all(isinstance(part, str) for part in parts)


def _known(dataset: Dataset, named: Sequence[str]) -> EdgeType:
    # As in PyG, a relation or a pair of node types does where it tells one edge type.
    wanted = tuple(named)
    found = [
        held for held in dataset.edge_types if wanted in (held, (held[0], held[2]), (held[1],))
    ]
    if len(found) != 1:
        raise InputError(
            f"edge_label_index names the edge type {wanted}, and {len(found)} are called so",
            path=str(dataset.path),
            value=str(wanted),
            remedy=f"one of: {', '.join(map(str, dataset.edge_types))}",
        )
    return found[0]


def _ends(dataset: Dataset, edge_type: EdgeType, links: Any) -> _Ids:
    held = links.detach().cpu().numpy() if isinstance(links, torch.Tensor) else np.asarray(links)
    if held.ndim != 2 or held.shape[0] != 2:
        raise InputError(
            f"edge_label_index has shape {held.shape}",
            remedy="give sources and targets, shape (2, links)",
        )
    ends = np.stack([whole_ids(held[0]), whole_ids(held[1])])
    for row, type, what in zip(ends, (edge_type[0], edge_type[2]), _ROWS, strict=True):
        count = dataset.node_record(type).count
        require_within(row, count, what=f"{what} of edge_label_index, of node type {type!r},")
    return ends


_ROWS = ("sources", "targets")
_EDGES_A_PIECE = 1 << 18


def _values(labels: Any) -> npt.NDArray[Any]:
    held = torch.as_tensor(labels, device="cpu").detach()
    if held.dtype == torch.bfloat16:
        raise InputError("edge_label is bfloat16", remedy="pass labels.float()")
    return held.numpy()
