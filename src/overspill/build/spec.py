"""What a build is asked to do, in a form that travels to the build's own process as JSON."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from overspill.errors import InputError
from overspill.settings import current_settings
from overspill.units import parse_bytes

PathLike = str | Path
IdMode = Literal["auto", "dense", "remap"]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MOST_NODES = 2**62


class BuildOptions(TypedDict, total=False):
    """The options of a build beside its inputs; see `BuildSpec` for each."""

    num_nodes: int | None
    ids: IdMode
    layout: Literal["csc"]
    columns: tuple[str, str] | None
    edge_axis: Literal[0, 1] | None


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """One build: one node type, one edge type. Paths are absolute.

    Attributes:
        out: The dataset's directory.
        edges: Edge files, in order.
        node_features: Name -> .npy file, its first axis the nodes.
        num_nodes: Number of nodes; None derives it from the features or the largest id.
        ids: "dense": ids are 0 to the number of nodes - 1. "remap": any int64 ids, made dense in
            their order. "auto": remap for SNAP text without num_nodes and features, else dense.
        layout: "csc": the in-neighbours of each node.
        memory_limit_bytes: The most anonymous memory the build's process may hold, imports
            included; None leaves it to the cgroup and the system.
        columns: Names of the source and target columns of CSV files; None takes "src" and "dst",
            else the only two columns there are.
        edge_axis: For .npy edges, the axis along which the edges lie: 1 for (2, E), 0 for (E, 2);
            None tells by the shape.
    """

    out: str
    edges: tuple[str, ...]
    node_features: dict[str, str] = field(default_factory=dict)
    num_nodes: int | None = None
    ids: IdMode = "auto"
    layout: Literal["csc"] = "csc"
    memory_limit_bytes: int | None = None
    columns: tuple[str, str] | None = None
    edge_axis: Literal[0, 1] | None = None

    def __post_init__(self) -> None:
        _require("ids", self.ids, ("auto", "dense", "remap"))
        _require("layout", self.layout, ("csc",))
        _require("edge_axis", self.edge_axis, (None, 0, 1))
        if self.columns is not None:
            names = tuple(self.columns)  # a list, from JSON or a command line, is as good
            if len(names) != 2:
                raise InputError("columns wants two names: of the sources and of the targets")
            object.__setattr__(self, "columns", names)
        if self.num_nodes is not None and not 0 <= self.num_nodes <= _MOST_NODES:
            raise InputError(f"num_nodes={self.num_nodes} is not a number of nodes")
        for name in self.node_features:
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"{name!r} cannot name a node array",
                    remedy="use letters, digits, '_', '-' and '.'; at most 100 of them",
                )

    def to_json(self) -> str:
        """The spec as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BuildSpec:
        """Read what `to_json` wrote; unknown fields are ignored."""
        held = json.loads(text)
        known = {name: held[name] for name in (f.name for f in fields(cls)) if name in held}
        known["edges"] = tuple(known["edges"])
        return cls(**known)


def describe_build(
    out: PathLike,
    *,
    edges: PathLike | Iterable[PathLike],
    node_features: Mapping[str, PathLike] | None = None,
    memory_limit: str | int | None = None,
    **options: Unpack[BuildOptions],
) -> BuildSpec:
    """Make a spec from what people write: relative paths, globs, sizes such as "1GiB".

    Args:
        out: The dataset's directory.
        edges: A file, a glob pattern (its matches in sorted order), or several of these.
        node_features: Name -> .npy file.
        memory_limit: See `BuildSpec`; None takes the setting's.
        **options: Further fields of `BuildSpec`.

    Raises:
        InputError: An option is wrong, or a pattern matches no file.
    """
    try:
        limit = None if memory_limit is None else parse_bytes(memory_limit)
    except ValueError as error:
        raise InputError(f"memory_limit: {error}") from error
    patterns = [edges] if isinstance(edges, str | Path) else list(edges)
    return BuildSpec(
        out=_absolute(out),
        edges=tuple(path for pattern in patterns for path in _matches(pattern)),
        node_features={name: _absolute(path) for name, path in (node_features or {}).items()},
        memory_limit_bytes=current_settings().memory_limit_bytes if limit is None else limit,
        **options,
    )


def _matches(pattern: PathLike) -> list[str]:
    text = _absolute(pattern)
    # A name that exists is that file, whatever brackets it has.
    if Path(text).exists() or not glob.has_magic(text):
        return [text]
    found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 (absolute patterns)
    if not found:
        raise InputError(f"no file matches {pattern}", path=text)
    return found


def _absolute(path: PathLike) -> str:
    return str(Path.cwd() / Path(path).expanduser())


def _require(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise InputError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
