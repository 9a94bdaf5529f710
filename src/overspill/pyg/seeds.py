"""The order of the seeds: which batch holds which, as a function of seed and epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from overspill.errors import InputError
from overspill.graph.dataset import Dataset
from overspill.graph.node_ids import require_within, whole_ids
from overspill.graph.streams import shuffled_positions, stream_key

_Ids = npt.NDArray[np.int64]
_ORDER_STREAM = 1  # apart from the batches' own streams


@dataclass(frozen=True)
class BatchRequest:
    """What a worker needs to know to make a batch: 16 bytes a seed.

    Attributes:
        epoch: Counted from 0.
        index: The batch's place in its epoch.
        seeds: int64 (batch,), node ids.
        input_ids: int64 (batch,), the seeds' places among the input nodes.
    """

    epoch: int
    index: int
    seeds: _Ids
    input_ids: _Ids


class InputNodes:
    """The nodes to make batches for: all nodes, a list of ids, or a boolean mask.

    All nodes take no memory; a list is held once, in the parent.

    Args:
        dataset: The dataset.
        nodes: None for all, ids, or a mask of shape (nodes,).

    Raises:
        InputError: Ids out of range, or a mask of another length.
    """

    def __init__(self, dataset: Dataset, nodes: torch.Tensor | Iterable[int] | None) -> None:
        record = dataset.node_record()
        self._nodes: _Ids | None = None
        self._masked = isinstance(nodes, torch.Tensor | np.ndarray | list) and _is_mask(nodes)
        if nodes is not None:
            self._nodes = _listed(nodes, record.count)
            require_within(self._nodes, record.count, what=f"input nodes of type {record.name!r}")
        self._count = record.count if self._nodes is None else self._nodes.size

    def __len__(self) -> int:
        return self._count

    @property
    def distinct(self) -> bool:
        """Whether no node is listed twice: a sort of the list, 8 bytes a node for its span."""
        return self._nodes is None or np.unique(self._nodes).size == self._nodes.size

    def request(self, epoch: int, index: int, places: _Ids) -> BatchRequest:
        """Ask for the batch of the input nodes at these places."""
        seeds = places if self._nodes is None else self._nodes[places]
        # PyG names a masked seed by its node, any other by its place in the list.
        return BatchRequest(epoch, index, seeds, seeds if self._masked else places)


class SeedBatches(Sampler[BatchRequest]):
    """Cuts the input nodes into batches: what the DataLoader takes for its batch sampler.

    Args:
        inputs: The input nodes.
        batch_size: Seeds a batch.
        order: True to shuffle, False to keep the order, or a sampler of places.
        drop_last: Whether to leave an incomplete last batch out.
        seed: Seed of the order.
    """

    def __init__(
        self,
        inputs: InputNodes,
        *,
        batch_size: int,
        order: bool | Sampler[int],
        drop_last: bool,
        seed: int,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(
                f"batch_size must be a whole number of seeds, 1 or more, not {batch_size!r}",
                value=str(batch_size),
                remedy="give the number of seeds of a batch",
            )
        self.inputs, self.batch_size, self.drop_last = inputs, batch_size, drop_last
        self.epoch = 0
        self._order, self._seed = order, seed

    @property
    def once(self) -> bool:
        """Whether every place comes up at most once an epoch; a sampler given may repeat some."""
        return isinstance(self._order, bool)

    def __len__(self) -> int:
        count = len(self.inputs) if isinstance(self._order, bool) else len(self._order)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[BatchRequest]:
        # The epoch is taken here, not when the first batch is drawn: another iterator may have
        # begun by then.
        return self._requests(self.epoch)

    def _requests(self, epoch: int) -> Iterator[BatchRequest]:
        for index, places in enumerate(self._places(epoch)):
            if places.size == self.batch_size or not self.drop_last:
                yield self.inputs.request(epoch, index, places)

    def _places(self, epoch: int) -> Iterator[_Ids]:
        count = len(self.inputs)
        if not isinstance(self._order, bool):
            drawn = iter(self._order)
            while chunk := list(islice(drawn, self.batch_size)):
                places = whole_ids(chunk)
                require_within(places, count, what="places drawn by the sampler")
                yield places
            return
        key = stream_key(self._seed, epoch, _ORDER_STREAM)
        for start in range(0, count, self.batch_size):
            stop = min(start + self.batch_size, count)
            if self._order:
                yield shuffled_positions(start, stop, count=count, key=key)
            else:
                yield np.arange(start, stop)


def _listed(nodes: torch.Tensor | Iterable[int], count: int) -> _Ids:
    named: object = nodes[:1] if isinstance(nodes, tuple) else [nodes]
    if isinstance(named, list | tuple) and any(isinstance(part, str) for part in named):
        raise InputError(
            f"input_nodes={nodes!r} names a node type, and a dataset has one only",
            remedy="pass the ids alone, or None for all nodes",
        )
    held = nodes if isinstance(nodes, torch.Tensor | np.ndarray) else list(nodes)
    if not _is_mask(held):
        return whole_ids(held)
    mask = np.asarray(held)
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
