"""The inputs of a build, opened and checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from overspill.build.array_inputs import ArrayInput, open_array, open_edge_array
from overspill.build.pipeline import prefetched
from overspill.build.readers.edges import EdgeChunk, EdgeReader, open_edges, sniff_format
from overspill.build.readers.source import SourceFile
from overspill.build.spec import BuildSpec, EdgeAxis, EdgeSpec, NodeSpec
from overspill.errors import InputError

IdKind = Literal["dense", "remap", "text"]


@dataclass(frozen=True)
class SentEdges:
    """What is known of edges that were, or are being, sent from memory.

    Attributes:
        axes: File -> the axis along which its edges lie, where the shape alone might not tell.
        readers: Stream -> its reader, where it is read as it comes.
    """

    axes: Mapping[str, EdgeAxis] = field(default_factory=dict)
    readers: Mapping[str, EdgeReader] = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeInputs:
    """The edge files of one type.

    Attributes:
        spec: What the build was told of them.
        readers: One for each file, in order.
        arrays: The named arrays, in order.
    """

    spec: EdgeSpec
    readers: tuple[EdgeReader, ...]
    arrays: tuple[ArrayInput, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all edge files."""
        return sum(reader.nbytes for reader in self.readers)

    @property
    def least_edges(self) -> int:
        """Edges of the files that tell without being read."""
        return sum(reader.count or 0 for reader in self.readers)

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


@dataclass(frozen=True)
class NodeInputs:
    """What is known of one node type before its edges are read.

    Attributes:
        name: The type.
        kind: How its ids become 0, 1, ...: they are ("dense"), or are made so.
        count: Number of nodes where it is known.
        known_from: What says so, for messages.
        arrays: The named arrays, in order.
    """

    name: str
    kind: IdKind
    count: int | None
    known_from: str
    arrays: tuple[ArrayInput, ...]

    def require_count(self, count: int, found_in: str) -> None:
        """Refuse a number of nodes that contradicts num_nodes or the arrays.

        Raises:
            InputError: It names the file and both numbers.
        """
        for array in self.arrays:
            array.require_rows(count, found_in, of="node")
        if self.count is not None and self.count != count:
            raise InputError(
                f"num_nodes={self.count}, but there are {count} nodes ({found_in})",
                value=str(self.count),
                remedy="leave num_nodes out where ids are remapped",
            )


@dataclass(frozen=True)
class Inputs:
    """What a build reads.

    Attributes:
        edges: The edge types, in order.
        nodes: The node types, by name.
    """

    edges: tuple[EdgeInputs, ...]
    nodes: dict[str, NodeInputs]

    @classmethod
    def open(cls, spec: BuildSpec, sent: SentEdges | None = None) -> Inputs:
        """Open every input and check what can be checked without reading it.

        Args:
            spec: The build; every path is a file, or a stream that has a reader.
            sent: What is known of those of its edges that come from memory.

        Raises:
            InputError: One is missing, damaged, or contradicts another.
        """
        sent = sent or SentEdges()
        text = {name: node.ids == "text" for name, node in spec.nodes.items()}
        paths = [path for edge in spec.edges for path in edge.paths if path not in sent.readers]
        files = {path: SourceFile.check(path) for path in paths}
        edges = tuple(
            _edge_inputs(edge, files, sent, text=(text[edge.type[0]], text[edge.type[2]]))
            for edge in spec.edges
        )
        snap = {
            name
            for edge in spec.edges
            if any(sniff_format(files[path]) == "snap" for path in edge.paths if path in files)
            for name in (edge.type[0], edge.type[2])
        }
        nodes = {
            name: _node_inputs(name, node, edges, snap=name in snap)
            for name, node in spec.nodes.items()
        }
        return cls(edges, nodes)

    def require_edge_rows(self) -> None:
        """Refuse arrays that have not one row an edge, as far as can be told without reading.

        Raises:
            InputError: It names the file and both numbers.
        """
        for edge in self.edges:
            if all(reader.count is not None for reader in edge.readers):
                for array in edge.arrays:
                    array.require_rows(edge.least_edges, "one an edge is needed", of="edge")

    def sources(self) -> list[tuple[str, int]]:
        """Path and size of every input, in order."""
        found = [(reader.path, reader.nbytes) for edge in self.edges for reader in edge.readers]
        named = [array for edge in self.edges for array in edge.arrays]
        named += [array for node in self.nodes.values() for array in node.arrays]
        return list(dict.fromkeys(found + [file for array in named for file in array.files()]))


def out_of_range(
    reader: EdgeReader, chunk: EdgeChunk, place: int, end: int, nodes: int | None
) -> InputError:
    """The error for an integer id that is out of range.

    Args:
        reader: Where the edge is from.
        chunk: Its chunk.
        place: Its place there.
        end: Whose id it is: 0 for the source, 1 for the target.
        nodes: How many there are; None where that is not known.
    """
    value = int(cast("Any", (chunk.sources, chunk.targets)[end])[place])
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
        column=reader.columns[end],
        value=str(value),
        remedy=remedy,
    )


def _node_inputs(
    name: str,
    spec: NodeSpec,
    edges: tuple[EdgeInputs, ...],
    *,
    snap: bool,
) -> NodeInputs:
    text = _holds_text(name, spec, edges)
    arrays = tuple(open_array(key, array, text=text) for key, array in spec.arrays.items())
    for array in arrays:
        _require_keys(array, name, text, edges)
    count, known_from = _known_nodes(spec, arrays)
    remap = spec.ids == "remap" or (spec.ids == "auto" and snap and count is None)
    kind: IdKind = "text" if text else "remap" if remap else "dense"
    return NodeInputs(name, kind, count, known_from, arrays)


def _holds_text(name: str, spec: NodeSpec, edges: tuple[EdgeInputs, ...]) -> bool:
    """Whether a type's ids are text; all files must agree."""
    found: dict[bool, EdgeReader] = {}
    columns: dict[bool, str] = {}
    for edge in edges:
        for place, end in enumerate((edge.spec.type[0], edge.spec.type[2])):
            if end == name:
                found.update({reader.text[place]: reader for reader in edge.readers})
                columns.update({held.text[place]: held.columns[place] for held in edge.readers})
    if len(found) == 2:
        raise InputError(
            f"ids of node type {name!r} are text in column {columns[True]!r} of "
            f"{found[True].path} and integers in column {columns[False]!r} of {found[False].path}",
            path=found[True].path,
            column=columns[True],
            remedy="save them as one kind; or are they of two node types?",
        )
    text = True in found
    if spec.ids == "text" and not text and found and found[False].count != 0:
        raise InputError(
            f"ids='text' for node type {name!r}, whose ids are integers",
            path=found[False].path,
            remedy="leave ids='text' out, or give the ids as strings",
        )
    if text and spec.ids == "dense":
        raise InputError(
            f"ids='dense' for node type {name!r}, whose ids are text",
            path=found[True].path,
            remedy="leave ids out: text is remapped",
        )
    return text


def _require_keys(array: ArrayInput, name: str, text: bool, edges: tuple[EdgeInputs, ...]) -> None:
    """Refuse rows that cannot find their nodes: in an order nobody knows, or by another kind."""
    if not any(edge.readers for edge in edges if name in (edge.spec.type[0], edge.spec.type[2])):
        return  # nothing tells yet: they are still to come
    if text and not array.keyed:
        raise InputError(
            f"ids of node type {name!r} are text, which are numbered in no order that the rows of "
            f"{array.path} could follow",
            path=array.path,
            column=array.name,
            remedy='name the column of ids: Columns("x", of="nodes.parquet", key="id")',
        )
    for part in array.parts if array.keyed else ():
        if part.layout.known and part.count != 0 and part.key_text != text:
            kinds = ("text", "integers") if text else ("integers", "text")
            raise InputError(
                f"ids of node type {name!r} are {kinds[0]}, the keys of {part.path} {kinds[1]}",
                path=part.path,
                column=array.spec.key,
                remedy="save both as one kind, or say ids='text' where both are CSV",
            )


def _edge_inputs(
    spec: EdgeSpec, files: Mapping[str, SourceFile], sent: SentEdges, *, text: tuple[bool, bool]
) -> EdgeInputs:
    readers = tuple(
        sent.readers[path]
        if path in sent.readers
        else open_edges(
            files[path], replace(spec, edge_axis=sent.axes.get(path, spec.edge_axis)), text=text
        )
        for path in spec.paths
    )
    arrays = tuple(open_edge_array(name, array, readers) for name, array in spec.arrays.items())
    return EdgeInputs(spec, readers, arrays)


def _known_nodes(spec: NodeSpec, arrays: tuple[ArrayInput, ...]) -> tuple[int | None, str]:
    told = [array for array in arrays if not array.keyed and array.count is not None]
    if spec.count is not None:
        count, known_from = spec.count, "num_nodes"
    elif told:
        count = cast("int", told[0].count)
        known_from = f"the rows of {Path(told[0].path).name}"
    else:
        return None, ""
    for array in told:
        array.require_rows(count, f"by {known_from}", of="node")
    return count, known_from
