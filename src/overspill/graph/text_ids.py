"""Raw ids that are text, as a sequence that reads what is asked for and holds nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch

from overspill.graph.id_arrays import IdArray
from overspill.graph.node_ids import require_within, whole_ids
from overspill.storage.texts import StoredTexts, split

_Ids = npt.NDArray[np.int64]
_WINDOW = 4096
_WINDOW_BYTES = 8 << 20


class TextIds:
    """The text ids of nodes, in the order of the nodes; made by `Dataset.node_ids`.

    ``len(ids)``, ``ids[3]``, ``ids[-1]``, ``ids[10:20]``, ``ids[[3, 1]]``, ``list(ids)``. Reads a
    few pages of the dataset's files for each id; iterating takes 16 MiB of memory, whatever their
    number, and one string at least. Threads may share it; it does not pickle: send the dataset.
    """

    def __init__(self, texts: StoredTexts, count: int, original: IdArray | None) -> None:
        self._texts, self._count, self._original = texts, count, original

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, nodes: int | np.integer[Any]) -> str: ...

    @overload
    def __getitem__(
        self, nodes: slice | torch.Tensor | npt.NDArray[Any] | Sequence[int]
    ) -> list[str]: ...

    def __getitem__(self, nodes: Any) -> str | list[str]:
        """The id of a node, or the ids of several.

        Args:
            nodes: A node, counted from the end where negative; a slice; or node ids.

        Raises:
            IndexError: There is no such node.
            InputError: Node ids out of range, or no whole numbers.
            FormatError: The dataset's offsets are damaged.
        """
        if isinstance(nodes, slice):
            return self._read(np.arange(*nodes.indices(self._count), dtype=np.int64))
        if hasattr(nodes, "__index__") and not getattr(nodes, "ndim", 0):
            place = range(self._count)[nodes]
            return self._read(np.array([place], dtype=np.int64))[0]
        wanted = whole_ids(nodes)
        require_within(wanted, self._count, what="node ids")
        return self._read(wanted)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, self._count, _WINDOW):
            nodes = np.arange(start, min(start + _WINDOW, self._count), dtype=np.int64)
            starts, lengths = self._spans(nodes)
            ends, first = np.cumsum(lengths), 0
            while first < nodes.size:
                # As many as the window's bytes hold; one string may be as long as it likes.
                before = int(ends[first]) - int(lengths[first])
                last = int(np.searchsorted(ends, before + _WINDOW_BYTES, "right"))
                part = slice(first, max(last, first + 1))
                yield from split(lengths[part], self._texts.read(starts[part], lengths[part]))
                first = part.stop

    def __repr__(self) -> str:
        return f"TextIds({self._count} ids)"

    def _read(self, nodes: _Ids) -> list[str]:
        starts, lengths = self._spans(nodes)
        order = np.argsort(starts, kind="stable")
        found = split(lengths[order], self._texts.read(starts[order], lengths[order]))
        texts = [""] * nodes.size
        for place, text in zip(order.tolist(), found, strict=True):
            texts[place] = text
        return texts

    def _spans(self, nodes: _Ids) -> tuple[_Ids, _Ids]:
        places = nodes if self._original is None else self._original.at(nodes)
        return self._texts.spans(places)
