"""From what people write to a `BuildSpec`: relative paths, globs, sizes, one type or many."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack, cast

from overspill.build.spec import (
    EDGE_TYPE,
    NODE_TYPE,
    ArraySpec,
    BuildSpec,
    Duplicates,
    EdgeAxis,
    EdgeName,
    EdgeSpec,
    IdMode,
    Layout,
    NodeSpec,
    NonFinite,
    Order,
    SelfLoops,
    plain_integer,
)
from overspill.errors import InputError
from overspill.settings import current_settings
from overspill.units import parse_bytes

PathLike = str | Path


class BuildOptions(TypedDict, total=False):
    """The options of a build beside its inputs; see `BuildSpec` and its parts for each."""

    num_nodes: int | Mapping[str, int] | None
    ids: IdMode | Mapping[str, IdMode]
    layout: Layout | Sequence[Layout]
    columns: tuple[str, str] | Mapping[EdgeName, tuple[str, str]] | None
    edge_axis: EdgeAxis | None
    header: bool | None
    to_undirected: bool
    edge_ids: bool
    duplicates: Duplicates
    self_loops: SelfLoops
    non_finite: NonFinite
    sort_within_row: bool
    order: Order
    threads: int | None
    resume: bool


@dataclass(frozen=True)
class Columns:
    """Columns of a table as one array: of node or edge rows.

    Attributes:
        names: One column gives (rows,), or (rows, k) where its cells are lists of k numbers;
            several of one type give (rows, columns).
        of: A file, a glob pattern or several; Parquet, CSV or Arrow. None: the edge files
            themselves.
        key: Column of node ids by which a row finds its node; None goes by the order of the rows.
        fill: With a key, the value of nodes without a row; rows of unknown nodes are then dropped.
            None makes either an error.
    """

    names: str | Sequence[str]
    of: PathLike | Sequence[PathLike] | Any = None
    key: str | None = None
    fill: float | int | bool | None = None

    def __repr__(self) -> str:
        told = [repr(self.names)]
        if self.of is not None:
            told.append(f"of={_named(self.of)}")
        told += [
            f"{name}={value!r}"
            for name, value in (("key", self.key), ("fill", self.fill))
            if value is not None
        ]
        return f"Columns({', '.join(told)})"


class Streams(Protocol):
    """Takes what lies in the caller's memory, to be sent to the build's process."""

    def add(self, value: object, *, what: str) -> str | None:
        """The name under which a value will arrive; None where it is nothing that can be sent."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each stream carries, for `BuildSpec.streams`."""


def describe_build(
    out: PathLike,
    *,
    edges: object,
    node_features: Mapping[Any, Any] | None = None,
    edge_features: Mapping[Any, Any] | None = None,
    memory_limit: str | int | None = None,
    streams: Streams | None = None,
    **options: Unpack[BuildOptions],
) -> BuildSpec:
    """Make a spec from what people write: relative paths, globs, sizes such as "1GiB".

    Args:
        out: The dataset's directory.
        edges: A file, a glob pattern (its matches in sorted order), or several of these; or edge
            type -> these.
        node_features: Name -> .npy file or `Columns`; or node type -> such a mapping.
        edge_features: Name -> .npy file or `Columns`; or edge type -> such a mapping.
        memory_limit: See `BuildSpec`; None takes the setting's.
        streams: Takes arrays, tables and iterators; None refuses them.
        **options: See `BuildOptions`.

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
    inputs = _Inputs(streams)
    types = inputs.edge_types(edges, edge_features, options)
    nodes = inputs.node_types(types, node_features, options)
    layout = options.get("layout", "csc")
    plain = {name: options[name] for name in _PASSED if name in options}  # type: ignore[literal-required]
    return BuildSpec(
        out=_absolute(out, "out"),
        edges=types,
        nodes=nodes,
        streams=() if streams is None else streams.kinds,
        layouts=(layout,) if isinstance(layout, str) else tuple(layout),
        memory_limit_bytes=_limit(memory_limit),
        **plain,
    )


_PASSED = (
    "to_undirected",
    "edge_ids",
    "duplicates",
    "self_loops",
    "non_finite",
    "sort_within_row",
    "order",
    "threads",
    "resume",
)


class _Inputs:
    def __init__(self, streams: Streams | None) -> None:
        self._streams = streams

    def edge_types(
        self, edges: object, features: Mapping[Any, Any] | None, options: BuildOptions
    ) -> tuple[EdgeSpec, ...]:
        by_type = edges if isinstance(edges, Mapping) else {EDGE_TYPE: edges}
        arrays = _by_type(features, "edge_features", tuple(by_type))
        columns = options.get("columns")
        if isinstance(columns, Mapping):
            _require_types(columns, "columns", tuple(by_type))
        return tuple(
            EdgeSpec(
                type=_edge_name(name),
                paths=self._paths(value, "edges"),
                columns=columns.get(name) if isinstance(columns, Mapping) else columns,
                edge_axis=options.get("edge_axis"),
                header=options.get("header"),
                arrays=self._arrays(arrays.get(name, {}), "edge_features"),
            )
            for name, value in by_type.items()
        )

    def node_types(
        self,
        edges: tuple[EdgeSpec, ...],
        features: Mapping[Any, Any] | None,
        options: BuildOptions,
    ) -> dict[str, NodeSpec]:
        named = [end for edge in edges for end in (edge.type[0], edge.type[2])]
        counts, ids = options.get("num_nodes"), options.get("ids", "auto")
        named += list(cast("Any", features)) if _is_typed(features) else []
        if not named and isinstance(counts, Mapping):
            named = list(counts)
        names = tuple(dict.fromkeys(named)) or (NODE_TYPE,)
        for argument, given in (("ids", ids), ("num_nodes", counts)):
            if isinstance(given, Mapping):
                _require_types(given, argument, names)
        arrays = _by_type(features, "node_features", names)
        if len(names) > 1 and counts is not None and not isinstance(counts, Mapping):
            raise InputError(
                f"num_nodes={counts!r} for {len(names)} node types: {', '.join(map(str, names))}",
                remedy=f"write num_nodes={{{names[0]!r}: ...}}",
            )
        return {
            name: NodeSpec(
                count=counts.get(name) if isinstance(counts, Mapping) else counts,
                ids=ids.get(name, "auto") if isinstance(ids, Mapping) else ids,
                arrays=self._arrays(arrays.get(name, {}), "node_features"),
            )
            for name in names
        }

    def _arrays(self, given: Mapping[Any, Any], argument: str) -> dict[str, ArraySpec]:
        return {name: self._array(value, f"{argument}[{name!r}]") for name, value in given.items()}

    def _array(self, value: object, argument: str) -> ArraySpec:
        if not isinstance(value, Columns):
            return ArraySpec(paths=(self._path(value, argument),))
        names = (value.names,) if isinstance(value.names, str) else tuple(value.names)
        if not names or not all(isinstance(name, str) for name in names):
            raise InputError(
                f"{argument} names no columns: {value.names!r}", remedy='write Columns("weight")'
            )
        paths = () if value.of is None else self._paths(value.of, argument)
        return ArraySpec(paths=paths, columns=names, key=value.key, fill=value.fill)

    def _paths(self, value: object, argument: str) -> tuple[str, ...]:
        if _is_several(value):
            if not value:
                raise InputError(
                    f"{argument} names no files",
                    remedy='for no edges at all, pass numpy.empty((2, 0), "int64")',
                )
            several = cast("Any", value)
            if isinstance(value, set | frozenset):  # whose order is another in each process
                several = sorted(several, key=str)
            return tuple(path for one in several for path in self._matches(one, argument))
        return tuple(self._matches(value, argument))

    def _matches(self, pattern: object, argument: str) -> list[str]:
        text = self._path(pattern, argument)
        try:
            if not isinstance(pattern, str | Path):
                return _files_of(text)
            found = matching_files(text)
            if not found and glob.has_magic(text):
                raise InputError(
                    f"no file matches {pattern}",
                    path=text,
                    remedy="check the pattern and the directory",
                )
            return found or _files_of(text)
        except OSError as error:
            raise InputError(
                f"cannot read {text}: {error.strerror}", path=text, remedy="check the path"
            ) from error

    def _path(self, value: object, argument: str) -> str:
        if not isinstance(value, str | Path) and self._streams is not None:
            name = self._streams.add(value, what=argument)
            if name is not None:
                return name
        return _absolute(value, argument)


def matching_files(pattern: str) -> list[str]:
    """The files that an absolute path or pattern means, in order; none where nothing is there.

    A name that exists is that file, whatever brackets it has; a directory means its Parquet files.
    OSError as the system gives it.
    """
    if Path(pattern).exists():
        return _files_of(pattern)
    found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (absolute patterns)
    return [path for match in found for path in _files_of(match)]


def _files_of(path: str) -> list[str]:
    """The path, or, of a directory of Parquet files, these in sorted order."""
    place = Path(path)
    if not place.is_dir():
        return [path]
    return [str(file) for file in sorted(place.rglob("*.parquet")) if file.is_file()] or [path]


def _is_several(value: object) -> bool:
    # Arrays and tables are iterable too, but one thing each.
    return isinstance(value, list | tuple | set | frozenset) and not _is_pair_of_rows(value)


def _is_pair_of_rows(value: Any) -> bool:
    """Whether it is [sources, targets], as arrays or lists of numbers."""
    return len(value) == 2 and not any(isinstance(part, str | Path) for part in value)


def _is_typed(features: Mapping[Any, Any] | None) -> bool:
    if not isinstance(features, Mapping) or not features:
        return False
    return all(isinstance(held, Mapping) for held in features.values())


def _by_type(
    features: Mapping[Any, Any] | None, argument: str, types: tuple[Any, ...]
) -> Mapping[Any, Any]:
    """Type -> name -> source, of either form."""
    if features is None:
        return {}
    if not isinstance(features, Mapping):
        raise InputError(
            f"{argument} is a {_kind(features)}, not names with their files",
            remedy=f'write {argument}={{"x": "x.npy"}}',
        )
    if _is_typed(features):
        _require_types(features, argument, types)
        return features
    if features and len(types) > 1:
        raise InputError(
            f"{argument} does not say of which type: there are {', '.join(map(str, types))}",
            remedy=f"write {argument}={{{types[0]!r}: {{...}}}}",
        )
    return {types[0]: features} if types else {}


def _require_types(given: Mapping[Any, Any], argument: str, types: tuple[Any, ...]) -> None:
    for name in given:
        if name not in types:
            raise InputError(
                f"{argument} names the type {name!r}, which no edges have",
                remedy=f"one of {', '.join(map(str, types))}",
            )


def _edge_name(name: object) -> EdgeName:
    if not isinstance(name, tuple) or len(name) != 3:
        raise InputError(
            f"{name!r} is not an edge type", remedy='write ("user", "buys", "item"): source first'
        )
    return name


def _limit(memory_limit: str | int | None) -> int | None:
    if memory_limit is None:
        return current_settings().memory_limit_bytes
    try:
        return parse_bytes(plain_integer(memory_limit))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"memory_limit={memory_limit!r} is not a size", remedy='write it like "1GiB"'
        ) from error


def _absolute(path: object, argument: str) -> str:
    if isinstance(path, str | Path):
        if "\0" in str(path):
            raise InputError(
                f"{argument}={str(path)!r} holds a NUL byte, which no path can",
                remedy="check how the path was put together",
            )
        return str(Path.cwd() / Path(path).expanduser())
    raise InputError(
        f"{argument} is a {_kind(path)}, not the path of a file", remedy=_remedy(path, argument)
    )


def _remedy(value: object, argument: str) -> str:
    if hasattr(value, "__array__"):
        return f'save it and pass the path: numpy.save("{argument.split("[")[0]}.npy", array)'
    if hasattr(value, "collect"):
        return "have it computed first: .collect()"
    if isinstance(value, list | tuple):
        return "make it one array: numpy.array(...); of edges, with the shape (2, E) or (E, 2)"
    return "pass the path of a file, an array or a table" if argument != "out" else "pass a path"


def _named(value: object) -> str:
    """Paths as they are, and what lies in memory by its kind: its own repr would print its data."""
    parts = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(part, str | Path) for part in parts):
        return repr(value)
    return f"<{_kind(value)}>"


def _kind(value: object) -> str:
    return f"{type(value).__module__.split('.')[0]} {type(value).__name__}"
