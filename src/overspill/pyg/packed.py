"""Batches that were packed: what was sampled, as parts of a pack, and put together again.

Packing samples every batch once, in this process, and writes the rows of all of them in batch order
(`overspill.graph.reading.packing`). From then on an epoch reads two sequential streams a part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from overspill.errors import FormatError
from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.reading.array_keys import ArrayKey
from overspill.graph.reading.pack_manifest import PackRecipe, read_pack_manifest
from overspill.graph.reading.pack_writer import PackWriter
from overspill.graph.reading.packing import Pack, open_pack
from overspill.pyg.sampling import Allocate, Output, is_hetero

logger = logging.getLogger("overspill")
_NODE, _TREE, _ROW, _COLUMN, _PLACE = "node", "tree", "row", "column", "place"
_FOUND_NODES, _FOUND_EDGES, _TOLD = "found nodes", "found edges", "told"
_MOST_TOLD = 1 << 10  # parts of metadata: two for nodes, four for links


@dataclass(frozen=True)
class PackPlace:
    """Where a loader's batches are packed, and what they are recognised by.

    Attributes:
        path: The directory.
        dataset: The dataset.
        recipe: What the batches are made by.
    """

    path: Path
    dataset: Dataset
    recipe: PackRecipe

    def opened_or_made(self, outs: Iterable[Output]) -> Pack:
        """Open the pack; where there is none yet, or an unfinished one, make it first.

        Args:
            outs: What is sampled for each batch, in order; drawn only if it must be packed.

        Raises:
            InputError: The pack is of other batches.
            StaleFileError: It is of another dataset, or a file changed.
            OutputDirError: The directory holds something else.
            DiskRefusedError: The disk refused.
        """
        held = open_pack(self.path, self.recipe)
        if held is None:
            logger.info("packing the batches into %s", self.path)
            with PackWriter(self.path, self.dataset, self.recipe) as writer:
                for out in outs:
                    writer.append(_parts(self.dataset, out))
                writer.finish()
            held = open_pack(self.path, self.recipe)
            assert held is not None
        return held


def pack_recipe(
    dataset: Dataset, keys: Iterable[ArrayKey], *, seed: int, options: Mapping[str, Any]
) -> PackRecipe:
    """What a pack of a loader's batches is recognised by; `options` as JSON holds them."""
    return PackRecipe(
        dataset=dataset.manifest.identifier,
        seed=seed,
        options=options,
        arrays={key: _part(_NODE if isinstance(key[0], str) else _PLACE, key[0]) for key in keys},
    )


def packed_seed(path: Path) -> int | None:
    """The seed that a pack was made by; None where there is none yet, or an unfinished one.

    Raises:
        FormatError: It is damaged, or of a version that this Overspill does not read.
        StaleFileError: A file of the pack is gone or differs.
    """
    manifest = read_pack_manifest(path.absolute())
    seed = None if manifest is None else manifest.recipe.get("seed")
    return seed if isinstance(seed, int) else None


def unpacked(pack: Pack, i: int, dataset: Dataset, new: Allocate) -> Output:
    """What was sampled for a batch, with its metadata.

    Args:
        pack: The pack.
        i: Which batch.
        dataset: The dataset.
        new: Makes the tensors.

    Raises:
        StaleFileError: A file of the pack is gone or was cut.
        FormatError: Ids of the pack name nothing: it is damaged.
    """
    parts = {}
    for name in pack.parts:
        held = new(pack.part_shape(i, name), pack.part_dtype(name))
        pack.read_part(i, name, held)
        parts[name] = held
    _require_in_range(pack, i, dataset, parts)
    told = _metadata(parts)
    if is_hetero(dataset):
        return _hetero_output(dataset, parts, told)
    (type,), (edge_type,) = dataset.node_types, dataset.edge_types
    return SamplerOutput(
        node=parts[_part(_NODE, type)],
        row=parts[_part(_ROW, edge_type)],
        col=parts[_part(_COLUMN, edge_type)],
        edge=parts[_part(_PLACE, edge_type)],
        batch=parts.get(_part(_TREE, type)),
        num_sampled_nodes=_listed(parts.get(_part(_FOUND_NODES, type))),
        num_sampled_edges=_listed(parts.get(_part(_FOUND_EDGES, edge_type))),
        metadata=told,
    )


def _require_in_range(
    pack: Pack, i: int, dataset: Dataset, parts: Mapping[str, torch.Tensor]
) -> None:
    """Refuse numbers that cannot be, where a model would read beyond its rows."""
    limits = {_TOLD: _MOST_TOLD}
    for type in dataset.node_types:
        limits[_part(_NODE, type)] = dataset.node_record(type).count
    for edge_type in dataset.edge_types:
        limits[_part(_PLACE, edge_type)] = dataset.edge_record(edge_type).count
        for kind, type in ((_ROW, edge_type[0]), (_COLUMN, edge_type[2])):
            nodes = parts.get(_part(_NODE, type))
            limits[_part(kind, edge_type)] = 0 if nodes is None else nodes.numel()
    for name, limit in limits.items():
        held = parts.get(name)
        if held is not None and held.numel() and not 0 <= held.min() <= held.max() < limit:
            raise FormatError(
                f"batch {i} of the pack has a {name} outside 0 .. {limit - 1}",
                path=str(pack.path),
                remedy="remove the directory, so that the batches are packed again; Pack.verify() "
                "tells which file is damaged",
            )


def _hetero_output(
    dataset: Dataset, parts: Mapping[str, torch.Tensor], told: tuple[torch.Tensor | None, ...]
) -> HeteroSamplerOutput:
    def by_type(kind: str, types: Iterable[Any]) -> dict[Any, Any]:
        return {type: parts[_part(kind, type)] for type in types if _part(kind, type) in parts}

    nodes, edges = dataset.node_types, dataset.edge_types
    found = by_type(_FOUND_NODES, nodes), by_type(_FOUND_EDGES, edges)
    return HeteroSamplerOutput(
        node=by_type(_NODE, nodes),
        row=by_type(_ROW, edges),
        col=by_type(_COLUMN, edges),
        edge=by_type(_PLACE, edges),
        batch=by_type(_TREE, nodes) or None,
        num_sampled_nodes={type: held.tolist() for type, held in found[0].items()} or None,
        num_sampled_edges={type: held.tolist() for type, held in found[1].items()} or None,
        metadata=told,
    )


def _parts(dataset: Dataset, out: Output) -> dict[str, torch.Tensor]:
    if isinstance(out, SamplerOutput):
        (type,), (edge_type,) = dataset.node_types, dataset.edge_types
        named: dict[str, dict[Any, Any]] = {
            _NODE: {type: out.node},
            _TREE: {type: out.batch},
            _ROW: {edge_type: out.row},
            _COLUMN: {edge_type: out.col},
            _PLACE: {edge_type: out.edge},
            _FOUND_NODES: {type: out.num_sampled_nodes},
            _FOUND_EDGES: {edge_type: out.num_sampled_edges},
        }
    else:
        named = {
            _NODE: out.node,
            _TREE: out.batch or {},
            _ROW: out.row,
            _COLUMN: out.col,
            _PLACE: out.edge or {},
            _FOUND_NODES: out.num_sampled_nodes or {},
            _FOUND_EDGES: out.num_sampled_edges or {},
        }
    parts = {
        _part(kind, type): torch.as_tensor(value, device="cpu")
        for kind, held in named.items()
        for type, value in held.items()
        if value is not None
    }
    return parts | _told(out)


def _told(out: Output) -> dict[str, torch.Tensor]:
    """The metadata: how many parts, and each that is there; of two rows with its links in front."""
    told = {_TOLD: torch.tensor([len(out.metadata)], device="cpu")}
    for place, held in enumerate(out.metadata):
        if held is not None:
            pair = held.ndim == 2 and place == 1
            name = f"{_TOLD} {place}{' pair' if pair else ''}"
            told[name] = (held.t() if pair else held).contiguous()
    return told


def _metadata(parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    told: list[torch.Tensor | None] = [None] * int(parts[_TOLD][0])
    for place in range(len(told)):
        pair = parts.get(f"{_TOLD} {place} pair")
        told[place] = parts.get(f"{_TOLD} {place}") if pair is None else pair.t().contiguous()
    return tuple(told)


def _part(kind: str, type: str | EdgeType) -> str:
    return f"{kind} {type if isinstance(type, str) else '|'.join(type)}"


def _listed(held: torch.Tensor | None) -> list[int] | None:
    return None if held is None else list(held.tolist())
