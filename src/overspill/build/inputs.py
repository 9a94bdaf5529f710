"""The inputs of a build, opened and checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from overspill.build.features import open_features
from overspill.build.npy import NpyFile
from overspill.build.pipeline import prefetched
from overspill.build.readers import EdgeChunk, EdgeReader, open_edges, sniff_format
from overspill.build.source import SourceFile
from overspill.build.spec import MOST_NODES, BuildSpec
from overspill.errors import InputError


@dataclass(frozen=True)
class Inputs:
    """What a build reads.

    Attributes:
        readers: One for each file of edges, in order.
        features: Name -> checked .npy file.
        remap: Whether ids are made dense.
        num_nodes: Number of nodes where it is known without the edges.
        known_from: What says so, for messages.
    """

    readers: tuple[EdgeReader, ...]
    features: dict[str, NpyFile]
    remap: bool
    num_nodes: int | None
    known_from: str

    @classmethod
    def open(cls, spec: BuildSpec) -> Inputs:
        """Open every input and check what can be checked without reading it.

        Raises:
            InputError: One is missing, damaged, or contradicts another.
        """
        features = {name: open_features(path) for name, path in spec.node_features.items()}
        count, known_from = _known_nodes(spec, features)
        sources = [SourceFile.check(path) for path in spec.edges]
        snap = any(sniff_format(source) == "snap" for source in sources)
        remap = spec.ids == "remap" or (spec.ids == "auto" and snap and count is None)
        readers = tuple(open_edges(source, spec) for source in sources)
        return cls(readers, features, remap, count, known_from)

    @property
    def nbytes(self) -> int:
        """Bytes of all edge files."""
        return sum(reader.nbytes for reader in self.readers)

    def chunks(self, most_edges: int) -> Iterator[tuple[EdgeReader, EdgeChunk, int]]:
        """Read all edges once, one chunk ahead in a thread of its own.

        Yields:
            The reader, its chunk, and the bytes read of all files.
        """
        before = 0
        for reader in self.readers:
            with closing(cast("Any", prefetched(reader.chunks(most_edges)))) as chunks:
                for chunk in chunks:
                    yield reader, chunk, before + chunk.bytes_done
            before += reader.nbytes

    def require_nodes(self, count: int, found_in: str) -> None:
        """Refuse a number of nodes that contradicts num_nodes or the features.

        Raises:
            InputError: It names the file and both numbers.
        """
        for name, file in self.features.items():
            if file.shape[0] != count:
                raise InputError(
                    f"{file.path} has {file.shape[0]} rows for {count} nodes ({found_in})",
                    path=file.path,
                    column=name,
                    value=str(file.shape[0]),
                    remedy="give one row for each node",
                )
        if self.num_nodes is not None and self.num_nodes != count:
            raise InputError(
                f"num_nodes={self.num_nodes}, but there are {count} nodes ({found_in})",
                value=str(self.num_nodes),
                remedy="leave num_nodes out where ids are remapped",
            )


def out_of_range(reader: EdgeReader, chunk: EdgeChunk, place: int, nodes: int | None) -> InputError:
    """The error for the edge at `place` of a chunk, one of whose ids is out of range."""
    ids = int(chunk.sources[place]), int(chunk.targets[place])
    wrong = 0 if not 0 <= ids[0] < (MOST_NODES if nodes is None else nodes) else 1
    value = ids[wrong]
    if value < 0:
        told, remedy = "an id is negative", "number the nodes from 0, or build with ids='remap'"
    elif nodes is None:
        told, remedy = "an id is too large: ids must be below 2**62", 'use ids="remap"'
    else:
        told = f"an id is out of range: there are {nodes} nodes, 0 to {nodes - 1}"
        remedy = "raise num_nodes, add rows to the node features, or build with ids='remap'"
    return InputError(
        told,
        path=reader.path,
        row=reader.locate(chunk.first + place),
        column=reader.columns[wrong],
        value=str(value),
        remedy=remedy,
    )


def _known_nodes(spec: BuildSpec, features: dict[str, NpyFile]) -> tuple[int | None, str]:
    if spec.num_nodes is not None:
        count, known_from = spec.num_nodes, "num_nodes"
    elif features:
        first = next(iter(features.values()))
        count, known_from = first.shape[0], f"the rows of {Path(first.path).name}"
    else:
        return None, ""
    for name, file in features.items():
        if file.shape[0] != count:
            raise InputError(
                f"{file.path} has {file.shape[0]} rows for {count} nodes (by {known_from})",
                path=file.path,
                column=name,
                value=str(file.shape[0]),
                remedy="give one row for each node",
            )
    return count, known_from
