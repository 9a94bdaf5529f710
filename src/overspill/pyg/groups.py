"""Groups of batches that are sampled together, so that their rows are read once, in file order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch

from overspill.graph.reading.array_keys import ArrayKey, Owner
from overspill.graph.reading.lookahead import ReadingBuffer, SharedReading
from overspill.graph.reading.row_reader import RowReader
from overspill.pyg.assembly import Fill
from overspill.pyg.order import Request
from overspill.pyg.sampling import Output

_NONE = torch.empty(0, dtype=torch.int64, device="cpu")


class BatchGroup:
    """Batches of one worker's group that are sampled and read, and not yet handed over.

    Holds what was sampled of each batch until it is taken, and the distinct rows of all of them.

    Args:
        requests: The requests of the group.
        outs: What was sampled for each.
        reader: What rows are read through.
        buffers: Memory for the rows of each array to read.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        outs: Sequence[Output],
        reader: RowReader,
        buffers: Mapping[ArrayKey, ReadingBuffer],
    ) -> None:
        self._left = {
            (held.epoch, held.index): (place, held, out)
            for place, (held, out) in enumerate(zip(requests, outs, strict=True))
        }
        self._reader = reader
        self._readings = {
            key: SharedReading(
                reader, key, [rows_of(out, key[0]).numpy() for out in outs], buffer=buffer
            )
            for key, buffer in buffers.items()
        }

    @property
    def left(self) -> int:
        """Batches not yet taken."""
        return len(self._left)

    def read(self) -> None:
        """Read rows now instead of when the first batch is taken (see `SharedReading.read`)."""
        for reading in self._readings.values():
            reading.read()

    def take(self, request: Request) -> tuple[Output, Fill] | None:
        """A batch's sample, and how to fill its rows, once; None where it is not of this group."""
        name = request.epoch, request.index
        # Another iterator's batch of that name may be of other inputs.
        if name not in self._left or not _same(self._left[name][1], request):
            return None
        place, _, out = self._left.pop(name)

        def fill(key: ArrayKey, ids: torch.Tensor, rows: torch.Tensor) -> None:
            if key in self._readings:
                self._readings[key].copy(place, rows)
            else:
                self._reader.gather(key, ids, out=rows)

        return out, fill


class GroupsInTurn:
    """Makes the groups of a process, the next one in a thread while this one's batches are taken.

    Bottleneck: the device, which waits while batches are put together, as they would wait for it.
    Two sides take turns, each with memory of its own. The thread lives as long as this does: not
    for a process that others may fork from.

    Args:
        make: Makes a group: of these requests, on side 0 or 1. Called in the thread too, never
            twice at a time.
    """

    def __init__(self, make: Callable[[Sequence[Request], int], BatchGroup]) -> None:
        self._make = make
        self._side = 0
        self._pool: ThreadPoolExecutor | None = None
        self._coming: tuple[Sequence[Request], Future[BatchGroup]] | None = None

    def begin(self, request: Request) -> BatchGroup:
        """The group that a request begins; the one that follows it is begun in the thread.

        Raises:
            StaleFileError: A file of the dataset was cut, replaced or removed.
            MappingError: The disk refused to read.
            NoRoomError: A batch outgrew the plan.
        """
        self.settle()  # what is of another pass still uses the other side
        coming, self._coming = self._coming, None
        if coming is not None and _are_same(coming[0], request.group):
            group = coming[1].result()
            self._side = 1 - self._side
        else:
            group = self._make(request.group, self._side)
        if request.following:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="overspill-group")
            read = self._pool.submit(self._read, request.following, 1 - self._side)
            self._coming = request.following, read
        return group

    def settle(self) -> None:
        """Wait until the thread has nothing more to do."""
        if self._coming is not None:
            wait([self._coming[1]])

    def close(self) -> None:
        """End the thread, once it has done what it is at."""
        self._coming = None
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _read(self, requests: Sequence[Request], side: int) -> BatchGroup:
        group = self._make(requests, side)
        group.read()
        return group


def _are_same(some: Sequence[Request], others: Sequence[Request]) -> bool:
    return len(some) == len(others) and all(map(_is_same_batch, some, others))


def _is_same_batch(one: Request, other: Request) -> bool:
    return (one.epoch, one.index) == (other.epoch, other.index) and _same(one, other)


def _same(one: Request, other: Request) -> bool:
    parts = zip(one.arrays(), other.arrays(), strict=True)
    return all(np.array_equal(mine, theirs) for mine, theirs in parts)


def rows_of(out: Output, owner: Owner) -> torch.Tensor:
    """The rows of one type that a sample needs: ids of nodes, or places of edges."""
    held = out.node if isinstance(owner, str) else out.edge
    if isinstance(held, Mapping):
        held = held.get(owner)
    return _NONE if held is None else held
