"""What a build is asked to do, in a form that travels to the build's own process as JSON."""

from __future__ import annotations

import glob
import json
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal, TypedDict, Unpack, cast

from overspill.errors import InputError
from overspill.settings import current_settings
from overspill.units import parse_bytes

PathLike = str | Path
IdMode = Literal["auto", "dense", "remap"]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
MOST_NODES = 2**62


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
        # numpy's integers are as good as Python's, but not in JSON.
        for name in ("num_nodes", "edge_axis"):
            object.__setattr__(self, name, _plain_integer(getattr(self, name)))
        _require("edge_axis", self.edge_axis, (None, 0, 1))
        if self.columns is not None:
            names = tuple(self.columns)  # a list, from JSON or a command line, is as good
            if isinstance(self.columns, str) or len(names) != 2:
                raise InputError(
                    f"columns={self.columns!r} is not two names: of the sources and of the targets",
                    remedy='write columns=("src", "dst")',
                )
            object.__setattr__(self, "columns", names)
        if self.num_nodes is not None and not _is_count(self.num_nodes):
            raise InputError(
                f"num_nodes={self.num_nodes!r} is not a number of nodes",
                remedy=f"give a whole number from 0 to {MOST_NODES}",
            )
        for name in self.node_features:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
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
        SettingsError: A setting in the environment cannot be understood.
    """
    unknown = sorted(set(options) - set(BuildOptions.__annotations__))
    if unknown:
        raise InputError(
            f"a build has no option {unknown[0]!r}",
            remedy=f"one of {', '.join(BuildOptions.__annotations__)}",
        )
    patterns: list[object] = [edges]
    if (
        isinstance(edges, Iterable)
        and not isinstance(edges, str)
        and not hasattr(edges, "__array__")
    ):
        patterns = list(edges)
    features = {} if node_features is None else node_features
    if not isinstance(features, Mapping):
        raise InputError(
            f"node_features is a {_kind(features)}, not names with their files",
            remedy='write node_features={"x": "x.npy"}',
        )
    return BuildSpec(
        out=_absolute(out, "out"),
        edges=tuple(path for pattern in patterns for path in _matches(pattern)),
        node_features={
            name: _absolute(path, f"node_features[{name!r}]") for name, path in features.items()
        },
        memory_limit_bytes=_limit(memory_limit),
        **options,
    )


def _limit(memory_limit: str | int | None) -> int | None:
    if memory_limit is None:
        return current_settings().memory_limit_bytes
    try:
        return parse_bytes(cast("str | int", _plain_integer(memory_limit)))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"memory_limit={memory_limit!r} is not a size", remedy='write it like "1GiB"'
        ) from error


def _matches(pattern: object) -> list[str]:
    text = _absolute(pattern, "edges")
    # A name that exists is that file, whatever brackets it has.
    if Path(text).exists() or not glob.has_magic(text):
        return [text]
    found = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 (absolute patterns)
    if not found:
        raise InputError(
            f"no file matches {pattern}", path=text, remedy="check the pattern and the directory"
        )
    return found


def _absolute(path: object, argument: str) -> str:
    if isinstance(path, str | Path):
        if "\0" in str(path):
            raise InputError(
                f"{argument}={str(path)!r} holds a NUL byte, which no path can",
                remedy="check how the path was put together",
            )
        return str(Path.cwd() / Path(path).expanduser())
    if hasattr(path, "__array__"):
        remedy = f'save it and pass the path: numpy.save("{argument.split("[")[0]}.npy", array)'
    else:
        remedy = "pass the path of a file"
    raise InputError(f"{argument} is a {_kind(path)}, not the path of a file", remedy=remedy)


def _kind(value: object) -> str:
    return f"{type(value).__module__.split('.')[0]} {type(value).__name__}"


def _plain_integer(value: object) -> object:
    """An integer of any library as Python's own; everything else as it is, to be refused."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # an array has the method too
        return value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_NODES


def _require(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if type(value) not in map(type, allowed) or value not in allowed:
        raise InputError(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}")
