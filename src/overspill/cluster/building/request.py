"""What a build in stages is asked for: checked before any machine is, refused in the first second.

Paths are of files on the machines, not of this process: a path means the same file on every machine
that has it, and "ADDRESS:/path" the file of one machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overspill.build.describe import Columns, describe_build
from overspill.build.spec import EDGE_TYPE, BuildSpec, EdgeName
from overspill.errors import InputError
from overspill.linux.paths import require_path
from overspill.storage.part_records import METHODS

# A descriptor a part, layout and edge array is open while a split is staged.
MOST_FILES = 900
_ON_MACHINE = re.compile(r"([\w.\-]+|\[[0-9A-Fa-f:]+\]):(/.*)", re.DOTALL)
ON_ONE_MACHINE = (
    "build it on one machine with ov.build_dataset, and split it with ov.partition_dataset"
)


@dataclass(frozen=True)
class Given:
    """A file or a pattern, as it was given.

    Attributes:
        pattern: Absolute.
        address: The machine that it is on; None: whichever has it.
    """

    pattern: str
    address: str | None

    @classmethod
    def of(cls, value: object, argument: str) -> Given:
        """Understand a path, or "ADDRESS:/path".

        Raises:
            InputError: It is something else.
        """
        if not isinstance(value, str | Path):
            raise InputError(
                f"{argument} holds a {type(value).__name__}, and machines read files",
                value=type(value).__name__,
                remedy="save it as .npy or Parquet where machines see it, and pass the path",
            )
        found = _ON_MACHINE.fullmatch(str(value))
        if found is not None:
            return cls(found[2], found[1].strip("[]"))
        return cls(str(Path.cwd() / Path(require_path(value)).expanduser()), None)

    def __str__(self) -> str:
        return self.pattern if self.address is None else f"{self.address}:{self.pattern}"


@dataclass(frozen=True)
class Request:
    """A build in stages.

    Attributes:
        spec: What the whole is to be; paths of files are not in it yet.
        num_parts: How many parts.
        method: How nodes are given to parts.
        edges: Edge type -> its files, in order.
        edge_arrays: Edge type -> array -> its .npy file; those that are columns of the edge files
            are in the spec alone.
        node_arrays: Node type -> array -> its .npy file.
    """

    spec: BuildSpec
    num_parts: int
    method: str
    edges: dict[EdgeName, tuple[Given, ...]]
    edge_arrays: dict[EdgeName, dict[str, Given]]
    node_arrays: dict[str, dict[str, Given]]

    def patterns(self) -> list[Given]:
        """Everything that machines are to look for, once each."""
        found = [given for files in self.edges.values() for given in files]
        for arrays in (*self.edge_arrays.values(), *self.node_arrays.values()):
            found += arrays.values()
        return list(dict.fromkeys(found))


def request_build(
    out: str | Path,
    *,
    edges: Any,
    num_parts: int,
    method: str,
    node_features: Mapping[Any, Any] | None,
    edge_features: Mapping[Any, Any] | None,
    **options: Any,
) -> Request:
    """Check what is asked for, as far as can be done without a look at the machines.

    Raises:
        InputError: An argument is wrong, or is of what no build in stages can do; says what can.
    """
    for name in ("resume", "memory_limit"):
        if options.pop(name, None):
            raise InputError(
                f"{name!r} is no option of this call",
                remedy="leave it out: every stage goes on where it was interrupted",
            )
    by_type = edges if isinstance(edges, Mapping) else {EDGE_TYPE: edges}
    files = {name: _files(value) for name, value in by_type.items()}
    places = _Places()
    spec = describe_build(
        out,
        edges={name: places.put(None) for name in files},
        node_features=places.all_of(node_features, "node_features"),
        edge_features=places.all_of(edge_features, "edge_features"),
        streams=places,
        **options,
    )
    spec, edge_arrays, node_arrays = _taken_apart(spec, places)
    request = Request(spec, _parts(num_parts), method, files, edge_arrays, node_arrays)
    _require_possible(request)
    return request


class _Places:
    """Stands for files while a build is described; see `describe.Streams`."""

    kinds = ()

    def __init__(self) -> None:
        self.given: dict[str, Given | None] = {}

    def put(self, given: Given | None) -> _Place:
        place = _Place(f"file {len(self.given)}")
        self.given[place.name] = given
        return place

    def add(self, value: object, *, what: str) -> str | None:  # noqa: ARG002 (a protocol's)
        """The name of what was put."""
        return value.name if isinstance(value, _Place) else None

    def all_of(self, features: Any, argument: str) -> Any:
        """The same features, files put."""
        if isinstance(features, Mapping):
            return {name: self.all_of(value, argument) for name, value in features.items()}
        if features is None:
            return None
        if isinstance(features, Columns):
            if argument == "node_features" or features.of is not None or features.key is not None:
                raise InputError(
                    f"{argument}: {features!r} are columns of a table of their own",
                    remedy="save them as .npy, a row each; columns of the edge files are read: "
                    'Columns("weight"); or ' + ON_ONE_MACHINE,
                )
            return features
        return self.put(Given.of(features, argument))


@dataclass(frozen=True)
class _Place:
    name: str


def _taken_apart(
    spec: BuildSpec, places: _Places
) -> tuple[BuildSpec, dict[EdgeName, dict[str, Given]], dict[str, dict[str, Given]]]:
    """The spec without the names of places, and what stood for them."""
    edge_arrays = {edge.type: _given(edge.arrays, places) for edge in spec.edges}
    node_arrays = {name: _given(node.arrays, places) for name, node in spec.nodes.items()}
    edges = tuple(
        replace(edge, paths=(), arrays=_named(edge.arrays, edge_arrays[edge.type]))
        for edge in spec.edges
    )
    nodes = {
        name: replace(node, arrays=_named(node.arrays, node_arrays[name]))
        for name, node in spec.nodes.items()
    }
    return replace(spec, edges=edges, nodes=nodes, streams=()), edge_arrays, node_arrays


def _given(arrays: Mapping[str, Any], places: _Places) -> dict[str, Given]:
    found = {name: places.given[array.paths[0]] for name, array in arrays.items() if array.paths}
    return {name: given for name, given in found.items() if given is not None}


def _named(arrays: Mapping[str, Any], given: Mapping[str, Given]) -> dict[str, Any]:
    return {
        name: replace(array, paths=(str(given[name]),)) if name in given else array
        for name, array in arrays.items()
    }


def _files(value: Any) -> tuple[Given, ...]:
    if isinstance(value, set | frozenset):  # whose order is another in each process
        value = sorted(value, key=str)
    several = value if isinstance(value, list | tuple) else [value]
    if not several:
        raise InputError("edges names no files", remedy="pass paths or a pattern")
    return tuple(Given.of(one, "edges") for one in several)


def _parts(num_parts: Any) -> int:
    whole = not isinstance(num_parts, bool) and hasattr(num_parts, "__index__")
    if not whole or int(num_parts) < 1:
        raise InputError(
            f"num_parts={num_parts!r} is not a number of parts", remedy="give 1 or more"
        )
    return int(num_parts)


def _require_possible(request: Request) -> None:
    spec = request.spec
    if request.method not in METHODS:
        raise InputError(
            f"method={request.method!r} is no way to partition",
            remedy=f"one of {', '.join(METHODS)}",
        )
    for name, node in spec.nodes.items():
        if node.ids in ("remap", "text"):
            raise InputError(
                f"ids={node.ids!r} for node type {name!r}: a build in stages takes ids that are "
                "the nodes' numbers, from 0",
                value=node.ids,
                remedy="number the nodes from 0; or " + ON_ONE_MACHINE,
            )
    if spec.order == "degree":
        raise InputError(
            "raw ids of nodes that are renumbered stay with a whole dataset, which is never made",
            value="order='degree'",
            remedy="leave it out; or " + ON_ONE_MACHINE,
        )
    arrays = max((len(edge.arrays) + 1 for edge in spec.edges if edge.arrays), default=0)
    files = request.num_parts * len(spec.layouts) * (1 + arrays)
    if files > MOST_FILES:
        raise InputError(
            f"{request.num_parts} parts take {files} files that are open at a time, more than "
            f"{MOST_FILES}",
            value=str(request.num_parts),
            remedy=f"make {MOST_FILES * request.num_parts // files} parts or fewer",
        )
    if request.method == "degree-balanced" and spec.duplicates != "keep":
        raise InputError(
            f"degree-balanced with duplicates={spec.duplicates!r}: which edges stay is known only "
            "once parts are built",
            value=spec.duplicates,
            remedy='use method="range" or "hash"; or ' + ON_ONE_MACHINE,
        )
