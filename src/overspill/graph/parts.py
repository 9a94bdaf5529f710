"""A part of a partitioned dataset: ids in the whole and ids in the part, translated both ways."""

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
from overspill.storage.manifest import Manifest, NodeTypeRecord, PartRecord
from overspill.storage.part_records import PartNodes
from overspill.storage.records import FileRecord

_Ids = npt.NDArray[np.int64]
_Given = torch.Tensor | npt.NDArray[Any] | Sequence[int]


class Part:
    """Which part a dataset is; made by `Dataset.part`. Threads may share it; it does not pickle.

    A part numbers its own nodes from 0, in the order of their ids in the whole dataset, the global
    ids. Its ``indices`` are global ids. Everything else of it takes and gives its own, local ids.

    Args:
        directory: The part's directory.
        record: Which part it is.
        manifest: The part's manifest.
        mapped: Gives an array file as a tensor.

    Attributes:
        index: The part's number, from 0.
        num_parts: How many parts there are.
        method: How nodes were given to parts.
        partition: Identifier of the partition.
    """

    def __init__(
        self,
        directory: Path,
        record: PartRecord,
        manifest: Manifest,
        mapped: Callable[[FileRecord], torch.Tensor],
    ) -> None:
        self.index, self.num_parts = record.index, record.num_parts
        self.method, self.partition = record.method, record.partition
        self._nodes = {
            name: PartIds(directory, node, record.nodes[name], mapped)
            for name, node in manifest.node_types.items()
        }

    def num_global_nodes(self, type: str | None = None) -> int:
        """Nodes of a type in the whole dataset; it may be left out where there is one only."""
        return self.of(type).global_count

    def global_ids(self, ids: _Given | None = None, type: str | None = None) -> torch.Tensor:
        """The ids in the whole dataset of the part's nodes.

        Args:
            ids: Local ids, in any order; None gives those of all nodes.
            type: The node type; may be left out where there is one only.

        Returns:
            int64 (ids,). Of all nodes: int64 or int32 (nodes,), mapped where parts are scattered
            by a hash; in memory, 8 bytes a node, where they are ranges.

        Raises:
            InputError: No such type, or no such node: names the first and how many.
            StaleFileError: A file was cut, replaced or removed since it was opened.
        """
        return self.of(type).to_global(None if ids is None else whole_ids(ids))

    def local_ids(self, ids: _Given, type: str | None = None) -> torch.Tensor:
        """The part's own ids of nodes of the whole dataset.

        By subtraction where parts are ranges; else by one binary search for all at once over the
        file of the part's ids, 64 bytes of memory an id.

        Args:
            ids: Global ids, in any order; repeats are fine.
            type: The node type; may be left out where there is one only.

        Returns:
            int64 (ids,).

        Raises:
            InputError: No such type, or a node that another part has: names the first and how
                many; the partition's book tells whose they are.
            StaleFileError: A file was cut, replaced or removed since it was opened.
        """
        return torch.from_numpy(self.of(type).to_local(whole_ids(ids)))

    def raw_ids(self, type: str) -> PartIds | None:
        """What tells the raw ids of a type; None: the part's own files, as those of any dataset.

        Raises:
            InputError: They are kept with the whole dataset.
        """
        ids = self.of(type)
        return None if ids.has_raw_files() else ids

    def of(self, type: str | None) -> PartIds:
        """The nodes of a type."""
        if type is None and len(self._nodes) == 1:
            return next(iter(self._nodes.values()))
        if type not in self._nodes:
            problem = "no node type was named" if type is None else f"no node type {type!r}"
            raise InputError(problem, remedy=f"one of: {', '.join(self._nodes)}")
        return self._nodes[type]

    def __repr__(self) -> str:
        return f"Part({self.index} of {self.num_parts}, by {self.method})"


def require_whole(part: Part | None, path: Path) -> None:
    """Refuse to follow edges of a part: its indices are ids of the whole dataset (InputError)."""
    if part is not None:
        raise InputError(
            f"{path} is one of {part.num_parts} parts: its neighbours have ids of the whole "
            f"dataset and may be in other parts",
            path=str(path),
            remedy="sample from the whole dataset, or from all parts together",
        )


class PartIds:
    """Ids of one node type of a part: of the nodes in the whole dataset, and raw ones.

    Args:
        directory: The part's directory.
        node: The type.
        nodes: Which of its nodes the part has.
        mapped: Gives an array file as a tensor.
    """

    def __init__(
        self,
        directory: Path,
        node: NodeTypeRecord,
        nodes: PartNodes,
        mapped: Callable[[FileRecord], torch.Tensor],
    ) -> None:
        self._directory, self._node, self._nodes, self._mapped = directory, node, nodes, mapped
        self.global_count = nodes.global_count

    def to_global(self, ids: _Ids | None) -> torch.Tensor:
        """See `Part.global_ids`."""
        first = self._nodes.first
        if ids is None:
            if self._nodes.ids is not None:
                return self._mapped(self._nodes.ids)
            return torch.arange(self._node.count, device="cpu") + (first or 0)
        require_within(ids, self._node.count, what=f"ids of node type {self._node.name!r}")
        if self._array is not None:
            return torch.from_numpy(self._array.at(ids))
        return torch.from_numpy(ids + (first or 0))

    def to_local(self, ids: _Ids) -> _Ids:
        """See `Part.local_ids`."""
        require_within(ids, self.global_count, what=f"global ids of node type {self._node.name!r}")
        if self._sorted is not None:
            places = self._sorted.find(ids)
        else:
            places = ids - (self._nodes.first or 0)
            places[(places < 0) | (places >= self._node.count)] = -1
        missing = np.flatnonzero(places < 0)
        if missing.size:
            at = int(missing[0])
            raise InputError(
                f"{missing.size} of {ids.size} global ids of node type {self._node.name!r} belong "
                f"to other parts: the first is {ids[at]} at position {at}",
                row=at,
                value=str(int(ids[at])),
                remedy="ask the parts that the partition book names",
            )
        return places

    def has_raw_files(self) -> bool:
        """Whether files tell the raw ids; see `Part.raw_ids`."""
        if not self._nodes.raw_ids:
            raise InputError(
                f"nodes of type {self._node.name!r} were renumbered: their raw ids are kept with "
                f"the whole dataset, and not with its parts",
                remedy="ask the whole dataset, by global ids: part.global_ids() gives them",
            )
        return self._node.ids is not None

    # As raw ids of nodes that the edges named by their global ids.

    def listed(self) -> torch.Tensor:
        """The raw id of each node; see `Dataset.node_ids`."""
        return self.to_global(None).to(torch.int64)

    def lookup(self, raw: torch.Tensor | npt.NDArray[Any] | Sequence[Any]) -> _Ids:
        """The node of each raw id; see `Dataset.lookup`."""
        texts = as_texts(raw)
        if texts:
            raise InputError(
                f"raw ids of node type {self._node.name!r} are integers, not text",
                value=repr(texts[0][:60]),
                remedy="pass whole numbers",
            )
        return self.to_local(whole_ids(raw))

    @cached_property
    def _array(self) -> IdArray | None:
        ids = self._nodes.ids
        return None if ids is None else IdArray(self._directory / ids.path, ids)

    @cached_property
    def _sorted(self) -> SortedIds | None:
        ids = self._nodes.ids
        return None if ids is None else SortedIds(self._directory / ids.path, ids)
