"""What a build is asked to do, in a form that travels to the build's own process as JSON."""

from __future__ import annotations

import json
import operator
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from overspill.build.part_spec import PartSpec
from overspill.errors import InputError

EdgeName = tuple[str, str, str]
IdMode = Literal["auto", "dense", "remap", "text"]
Layout = Literal["csc", "csr"]
Duplicates = Literal["keep", "drop", "count"]
SelfLoops = Literal["keep", "drop"]
NonFinite = Literal["keep", "error"]
Order = Literal["given", "degree"]
EdgeAxis = Literal[0, 1]

NODE_TYPE = "node"
EDGE_TYPE: EdgeName = (NODE_TYPE, "to", NODE_TYPE)
MOST_NODES = 2**62
STREAM_PREFIX = "stream:"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class ArraySpec:
    """Where the rows of one named array come from.

    Attributes:
        paths: Files in order; none: the edge files themselves, of which `columns` are further ones.
        columns: Columns of tables; none for .npy files.
        key: Column of raw ids by which rows find their nodes; None goes by the order of the rows.
        fill: Value of rows that no id names; None makes a missing or an extra row an error.
    """

    paths: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    key: str | None = None
    fill: float | int | bool | None = None

    def __post_init__(self) -> None:
        _fix(self, fill=_plain_number(self.fill))
        if self.fill is not None and not isinstance(self.fill, int | float):
            raise InputError(
                f"the fill value {self.fill!r} is not a number",
                value=repr(self.fill),
                remedy="give a number or a truth value, or leave fill out",
            )
        if self.fill is not None and self.key is None:
            raise InputError(
                f"fill={self.fill!r} without a key: rows that go by their order have no gaps",
                value=repr(self.fill),
                remedy="give key=, the column of node ids, or leave fill out",
            )


@dataclass(frozen=True, kw_only=True)
class EdgeSpec:
    """The edges of one type.

    Attributes:
        type: (source, relation, target).
        paths: Edge files, in order, or streams (`STREAM_PREFIX` and a number).
        columns: Names of the source and target columns of tables; None takes "src" and "dst", else
            the only two columns there are.
        edge_axis: For .npy edges, the axis along which the edges lie: 1 for (2, E), 0 for (E, 2);
            None tells by the shape.
        header: Whether the first line of CSV files names the columns; None tells by its cells.
        arrays: Name -> its rows, one an input edge.
    """

    type: EdgeName = EDGE_TYPE
    paths: tuple[str, ...] = ()
    columns: tuple[str, str] | None = None
    edge_axis: EdgeAxis | None = None
    header: bool | None = None
    arrays: dict[str, ArraySpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _fix(self, type=tuple(self.type), edge_axis=plain_integer(self.edge_axis))
        if len(self.type) != 3:
            raise InputError(
                f"{self.type!r} is not an edge type", remedy='write ("user", "buys", "item")'
            )
        for part in self.type:
            require_name(part, "a node or edge type")
        require_one_of("edge_axis", self.edge_axis, (None, 0, 1))
        require_one_of("header", self.header, (None, False, True))
        _fix(self, columns=_two_names(self.columns))
        for name in self.arrays:
            require_name(name, "an edge array")


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node type.

    Attributes:
        count: Number of nodes; None derives it from arrays or ids.
        ids: "dense": ids are 0 to the number of nodes - 1. "remap": any int64 ids, in their order,
            or strings of a typed column, made dense. "text": strings, of CSV files too. "auto":
            remap for columns of strings, and for SNAP text where nothing says how many nodes there
            are; else dense.
        arrays: Name -> its rows, one a node.
    """

    count: int | None = None
    ids: IdMode = "auto"
    arrays: dict[str, ArraySpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # numpy's integers are as good as Python's, but not in JSON.
        _fix(self, count=plain_integer(self.count))
        require_one_of("ids", self.ids, get_args(IdMode))
        if self.count is not None and not _is_count(self.count):
            raise InputError(
                f"num_nodes={self.count!r} is not a number of nodes",
                remedy=f"give a whole number from 0 to {MOST_NODES}",
            )
        for name in self.arrays:
            require_name(name, "a node array")


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """One build. Paths are absolute.

    Attributes:
        out: The dataset's directory.
        edges: The edge types.
        nodes: Node type -> what is known of it; every type that edges name is there.
        streams: Of each stream that the caller sends, what it carries: "npy" or "arrow".
        layouts: "csc": the in-neighbours of each node; "csr": the out-neighbours.
        to_undirected: Whether each edge also runs the other way.
        edge_ids: Whether to keep which input row each edge came from.
        duplicates: Parallel edges: "keep", "drop" all but the first, or "count" them.
        self_loops: "keep" or "drop".
        non_finite: Infinite and missing (NaN) floats in arrays: "keep" and count, or "error".
        sort_within_row: Whether neighbours are sorted by id; else they stand in input order.
        order: "given", or "degree": nodes are renumbered by falling in-degree.
        memory_limit_bytes: The most anonymous memory the build's process may hold, imports
            included; None leaves it to the cgroup and the system.
        threads: The most threads that compute at a time; None takes the CPUs there are.
        resume: Whether an unfinished build in `out` is taken up where it stopped.
        part: What was staged, where one part of a whole is built; nothing else is read then.
    """

    out: str
    edges: tuple[EdgeSpec, ...] = ()
    nodes: dict[str, NodeSpec] = field(default_factory=dict)
    streams: tuple[str, ...] = ()
    layouts: tuple[Layout, ...] = ("csc",)
    to_undirected: bool = False
    edge_ids: bool = False
    duplicates: Duplicates = "keep"
    self_loops: SelfLoops = "keep"
    non_finite: NonFinite = "keep"
    sort_within_row: bool = True
    order: Order = "given"
    memory_limit_bytes: int | None = None
    threads: int | None = None
    resume: bool = False
    part: PartSpec | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            require_one_of(name, getattr(self, name), allowed)
        _fix(self, threads=plain_integer(self.threads))
        if self.threads is not None and not (type(self.threads) is int and self.threads >= 1):
            raise InputError(
                f"threads={self.threads!r} is not a number of threads",
                remedy="give a number from 1, or leave it out",
            )
        for layout in self.layouts:
            require_one_of("layout", layout, get_args(Layout))
        if not self.layouts or len(set(self.layouts)) != len(self.layouts):
            raise InputError(
                f"layout={self.layouts!r} names no layout, or one twice",
                remedy='write layout="csc", layout="csr" or layout=("csc", "csr")',
            )
        for name in self.nodes:
            require_name(name, "a node type")
        for edge in self.edges:
            self._require_undirectable(edge)

    def _require_undirectable(self, edge: EdgeSpec) -> None:
        source, _, target = edge.type
        if self.to_undirected and source != target:
            raise InputError(
                f"to_undirected=True, but edges of type {edge.type} join two node types",
                value=str(edge.type),
                remedy="leave it out and build the reverse edges as a type of their own",
            )

    def to_json(self) -> str:
        """The spec as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BuildSpec:
        """Read what `to_json` wrote."""
        held = json.loads(text)
        held["edges"] = tuple(edge_from_json(edge) for edge in held["edges"])
        held["nodes"] = {
            name: NodeSpec(**node | {"arrays": _arrays_from(node["arrays"])})
            for name, node in held["nodes"].items()
        }
        held |= {"streams": tuple(held["streams"]), "layouts": tuple(held["layouts"])}
        part = held["part"]
        return cls(**held | {"part": None if part is None else PartSpec.from_json(part)})


_CHOICES: dict[str, tuple[object, ...]] = {
    "to_undirected": (False, True),
    "edge_ids": (False, True),
    "duplicates": get_args(Duplicates),
    "self_loops": get_args(SelfLoops),
    "non_finite": get_args(NonFinite),
    "sort_within_row": (False, True),
    "order": get_args(Order),
    "resume": (False, True),
}


def require_one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Refuse an option's value that is not one of those there are.

    Raises:
        InputError: It names them.
    """
    if type(value) not in map(type, allowed) or value not in allowed:
        raise InputError(
            f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}",
            remedy="give one of these",
        )


def require_name(name: object, what: str) -> None:
    """Refuse what could not be a file's name.

    Raises:
        InputError: It says what is allowed.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot name {what}",
            remedy="use letters, digits, '_', '-' and '.'; at most 100 of them",
        )


def plain_integer(value: Any) -> Any:
    """An integer of any library as Python's own; everything else as it is, to be refused."""
    # numpy before 2 takes its own truth values for numbers.
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # an array has the method too
        return value


def _plain_number(value: Any) -> Any:
    """A number of any library as Python's own; everything else as it is, to be refused."""
    return value.item() if getattr(value, "shape", None) == () else value


def _number(fill: Any) -> Any:
    """One that a file of JSON spells out, because JSON has no such number: "nan", "inf"."""
    return float(fill) if isinstance(fill, str) else fill


def _two_names(columns: Any) -> tuple[str, str] | None:
    if columns is None:
        return None
    names = columns if isinstance(columns, str) else tuple(columns)
    if isinstance(names, str) or len(names) != 2:
        raise InputError(
            f"columns={columns!r} is not two names: of the sources and of the targets",
            remedy='write columns=("src", "dst")',
        )
    for name in names:
        if not isinstance(name, str):
            raise InputError(
                f"columns={columns!r}: {name!r} is no name",
                remedy='columns of CSV files without a header are called "0", "1" and so on',
            )
    return names[0], names[1]


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_NODES


def _fix(spec: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def edge_from_json(held: dict[str, Any]) -> EdgeSpec:
    """Read what `dataclasses.asdict` and JSON made of an `EdgeSpec`."""
    return EdgeSpec(
        **held | {"paths": tuple(held["paths"]), "arrays": _arrays_from(held["arrays"])}
    )


def _arrays_from(held: dict[str, Any]) -> dict[str, ArraySpec]:
    return {
        name: ArraySpec(
            **array
            | {"paths": tuple(array["paths"]), "columns": tuple(array["columns"])}
            | {"fill": _number(array.get("fill"))}
        )
        for name, array in held.items()
    }
