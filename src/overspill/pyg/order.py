"""The order of the inputs: which batch holds which, as a function of seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from overspill.errors import InputError
from overspill.graph.node_ids import require_within, whole_ids
from overspill.graph.streams import shuffled_positions, stream_key
from overspill.pyg.links import LinkRequest
from overspill.pyg.seeds import NodeRequest

_Ids = npt.NDArray[np.int64]
_ORDER_STREAM = 1  # apart from the batches' own streams
Request = NodeRequest | LinkRequest


class Inputs(Protocol):
    """What batches are made for: nodes or links."""

    def __len__(self) -> int: ...

    @property
    def distinct(self) -> bool:
        """Whether none is listed twice."""
        ...

    def request(self, epoch: int, index: int, places: _Ids) -> Request:
        """Ask for the batch of the inputs at these places."""
        ...

    def digest(self) -> str:
        """What tells these inputs from others: a hash, after one pass over what is held."""
        ...


class InputBatches(Sampler[Request]):
    """Cuts the inputs into batches: what the DataLoader takes for its batch sampler.

    Args:
        inputs: The input nodes or links.
        batch_size: Inputs a batch.
        order: True to shuffle, False to keep the order, or a sampler of places.
        drop_last: Whether to leave an incomplete last batch out.
        seed: Seed of the order.
        fixed: Whether every epoch is made of the same batches, those of epoch 0.
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        batch_size: int,
        order: bool | Sampler[int],
        drop_last: bool,
        seed: int,
        fixed: bool = False,
    ) -> None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(
                f"batch_size must be a whole number of inputs, 1 or more, not {batch_size!r}",
                value=str(batch_size),
                remedy="give the number of seeds of a batch",
            )
        self.inputs, self.batch_size, self.drop_last = inputs, batch_size, drop_last
        self.epoch = 0
        self.lookahead, self.workers = 1, 1
        self.fixed = fixed
        self._order, self._seed = order, seed

    @property
    def once(self) -> bool:
        """Whether every place comes up at most once an epoch; a sampler given may repeat some."""
        return isinstance(self._order, bool)

    @property
    def largest(self) -> int:
        """The most inputs of a batch."""
        return min(self.batch_size, len(self.inputs)) if self.once else self.batch_size

    def __len__(self) -> int:
        count = len(self.inputs) if isinstance(self._order, bool) else len(self._order)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Request]:
        # The epoch is taken here, not when the first batch is drawn: another iterator may have
        # begun by then.
        requests = self.requests(0 if self.fixed else self.epoch)
        if self.lookahead <= 1:
            return requests
        return grouped(requests, self.lookahead, self.workers)

    def requests(self, epoch: int) -> Iterator[Request]:
        """The requests of an epoch, in order, without groups."""
        for index, places in enumerate(self._places(epoch)):
            if places.size == self.batch_size or not self.drop_last:
                request = self.inputs.request(epoch, index, places)
                yield replace(request, packed=True) if self.fixed else request

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


def grouped(requests: Iterator[Request], size: int, workers: int) -> Iterator[Request]:
    """Tell each worker, where it begins a group of batches, what the others of the group are.

    torch gives batches to its workers in turn: batch i to worker i modulo their number. Where it
    does not, a worker makes the batch alone, so nothing but speed rests on this. It is told the
    group after that one too, so that it may begin with it. Holds ``2 * size * workers`` requests.

    Args:
        requests: The requests of an epoch, in order.
        size: Batches a group.
        workers: Worker processes, at least 1.
    """
    held = tuple(islice(requests, size * workers))
    while held:
        following = tuple(islice(requests, size * workers))
        for place, request in enumerate(held):
            if place < workers:
                groups = held[place::workers], following[place::workers]
                request = replace(request, group=groups[0], following=groups[1])  # type: ignore[arg-type] # alike
            yield request
        held = following
