"""A group of batches that are sampled together, so that their rows are read once, in file order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def _same(one: Request, other: Request) -> bool:
    parts = zip(one.arrays(), other.arrays(), strict=True)
    return all(np.array_equal(mine, theirs) for mine, theirs in parts)


def rows_of(out: Output, owner: Owner) -> torch.Tensor:
    """The rows of one type that a sample needs: ids of nodes, or places of edges."""
    held = out.node if isinstance(owner, str) else out.edge
    if isinstance(held, Mapping):
        held = held.get(owner)
    return _NONE if held is None else held
