"""The ids that people know nodes by: listed by node, and looked up.

Nodes were numbered by the order of their raw ids, or, of ids that are text, by the order of their
hashes; where the build renumbered them, another array leads from a node to its first number, and
its inverse back. Bottleneck: the device's random reads; nothing is held in memory but what is
asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import InputError
from overspill.graph.id_arrays import IdArray, SortedIds
from overspill.graph.node_ids import as_texts, require_within, whole_ids
from overspill.graph.text_ids import TextIds
from overspill.linux.residency import shows_residency
from overspill.storage.manifest import NodeTypeRecord
from overspill.storage.records import FileRecord
from overspill.storage.texts import StoredTexts, joined, text_hashes
from overspill.tensors.preshared import allocate_preshared

_Ids = npt.NDArray[np.int64]
_WINDOW = 1 << 18
_SHOWN = 60


class RawIds:
    """Raw ids of one node type. Threads may share it; it does not pickle.

    Args:
        directory: The dataset.
        node: The type.
        mapped: Gives an array file as a tensor.
    """

    def __init__(
        self, directory: Path, node: NodeTypeRecord, mapped: Callable[[FileRecord], torch.Tensor]
    ) -> None:
        self._directory, self._node, self._mapped = directory, node, mapped
        self._what = f"raw ids of node type {node.name!r}"

    def listed(self) -> torch.Tensor | TextIds:
        """The raw id of each node; see `Dataset.node_ids`."""
        node = self._node
        if self._texts is not None:
            return TextIds(self._texts, node.count, self._original)
        if node.original is None:
            return (
                torch.arange(node.count, device="cpu")
                if node.ids is None
                else self._mapped(node.ids)
            )
        out = allocate_preshared((node.count,), torch.int64)
        first_numbers = self._mapped(node.original).numpy()
        for start in range(0, node.count, _WINDOW):
            part = first_numbers[start : start + _WINDOW].astype(np.int64)
            raw = part if self._ids is None else self._ids.at(part)
            out[start : start + _WINDOW] = torch.from_numpy(raw)
        return out

    def lookup(self, raw: torch.Tensor | npt.NDArray[Any] | Sequence[Any]) -> _Ids:
        """The node of each raw id; see `Dataset.lookup`."""
        texts = as_texts(raw)
        if self._texts is not None:
            places = self._text_places(texts, raw)
        elif texts:
            raise InputError(
                f"{self._what} are integers, not text",
                value=_shown(texts[0]),
                remedy="pass whole numbers",
            )
        else:
            places = self._whole_places(whole_ids(raw))
        return places if self._renumbered is None else self._renumbered.at(places)

    def _whole_places(self, wanted: _Ids) -> _Ids:
        if self._sorted is None:
            require_within(wanted, self._node.count, what=self._what)
            return wanted.copy()
        places = self._sorted.find(wanted)
        self._require_found(places, lambda at: str(int(wanted[at])))
        return places

    def _text_places(self, texts: list[str] | None, raw: Any) -> _Ids:
        if texts is None:
            raise InputError(
                f"{self._what} are text, not {_kind(raw)}",
                remedy='pass a list of strings, or an array of them: ["007", "7"]',
            )
        try:
            offsets, data = joined(texts)
        except UnicodeEncodeError as error:
            raise InputError(
                f"{self._what} are UTF-8, which cannot hold a surrogate",
                value=ascii(error.object)[:_SHOWN],
                remedy="check how the string was decoded",
            ) from error
        places = self._find_texts(offsets, data)
        self._require_found(places, lambda at: _shown(texts[at]))
        return places

    def _find_texts(self, offsets: _Ids, data: npt.NDArray[np.uint8]) -> _Ids:
        if self._sorted is None or self._texts is None:
            return np.full(len(offsets) - 1, -1, dtype=np.int64)
        places = self._sorted.find(text_hashes(offsets, data, salt=self._node.salt))
        known = np.flatnonzero(places >= 0)
        spans = offsets[known], offsets[known + 1] - offsets[known]
        # An unknown string may share the hash of another.
        places[known[~self._texts.equal(places[known], spans, data)]] = -1
        return places

    def _require_found(self, places: _Ids, shown: Callable[[int], str]) -> None:
        missing = np.flatnonzero(places < 0)
        if missing.size:
            first = int(missing[0])
            raise InputError(
                f"{missing.size} of {places.size} {self._what} belong to no node: the first is "
                f"{shown(first)} at position {first}",
                row=first,
                value=shown(first),
                remedy="pass ids that the edges named; node_ids() lists them",
            )

    @cached_property
    def _sorted(self) -> SortedIds | None:
        ids = self._node.ids
        return None if ids is None else SortedIds(self._directory / ids.path, ids)

    @cached_property
    def _ids(self) -> IdArray | None:
        return self._array(self._node.ids)

    @cached_property
    def _original(self) -> IdArray | None:
        return self._array(self._node.original)

    @cached_property
    def _renumbered(self) -> IdArray | None:
        return self._array(self._node.renumbered)

    @cached_property
    def _texts(self) -> StoredTexts | None:
        texts = self._node.texts
        if texts is None:
            return None
        probed = shows_residency(self._directory / texts["data"].path)
        return StoredTexts(self._directory, texts, probed=probed)

    def _array(self, record: FileRecord | None) -> IdArray | None:
        return None if record is None else IdArray(self._directory / record.path, record)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def _kind(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return f"{type(value).__name__}" + ("" if dtype is None else f" of {dtype}")
