"""What the headers of all inputs tell, each read by one machine that has it; refusals follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from overspill.build.spec import BuildSpec, EdgeName
from overspill.cluster.building import input_files
from overspill.cluster.building.input_files import ArrayFile, EdgeFile
from overspill.cluster.building.job import ArrayPlace
from overspill.cluster.building.request import ON_ONE_MACHINE, Given, Request
from overspill.cluster.building.seeing import Seen
from overspill.cluster.building.splitting import InputFile
from overspill.cluster.building.tasks import Task, run_tasks
from overspill.errors import InputError

Files = dict[Given, list[Seen]]


@dataclass(frozen=True)
class Headers:
    """What the headers tell.

    Attributes:
        edges: Edge type -> its files, in order.
        node_arrays: Node type -> array -> its file.
        edge_arrays: Edge type -> array -> its .npy file.
        counts: Node type -> number of nodes, of those that something tells.
        rows: Path -> rows of an array file.
    """

    edges: dict[EdgeName, list[InputFile]]
    node_arrays: dict[str, dict[str, ArrayPlace]]
    edge_arrays: dict[EdgeName, dict[str, ArrayPlace]]
    counts: dict[str, int]
    rows: dict[str, int]


def read_headers(
    request: Request, spec: BuildSpec, files: Files, addresses: Sequence[str]
) -> Headers:
    """Read the headers of all files on the machines that have them.

    Raises:
        InputError: A file is wrong, contradicts another, or is of what no build in stages can take.
    """
    seen = [
        (edge, one)
        for edge in spec.edges
        for given in request.edges[edge.type]
        for one in files[given]
    ]
    asked = [(one.machines, (one.window, edge)) for edge, one in seen]
    told: list[EdgeFile] = _asked(asked, input_files.describe_edges, addresses)
    found = [(edge.type, one, file) for (edge, one), file in zip(seen, told, strict=True)]
    _require_numbers(spec, found)
    _require_alike(found)
    edges: dict[EdgeName, list[InputFile]] = {edge.type: [] for edge in spec.edges}
    for name, one, file in found:
        by_row = file.kind == "npy"
        edges[name].append(InputFile(one.window, one.machines, file.count, file.units, by_row))
    rows: dict[str, int] = {}
    nodes = {
        name: _places(arrays, files, addresses, rows)
        for name, arrays in request.node_arrays.items()
    }
    held = {
        name: _places(arrays, files, addresses, rows)
        for name, arrays in request.edge_arrays.items()
    }
    return Headers(edges, nodes, held, _counts(spec, nodes, rows), rows)


def _asked(
    items: Sequence[tuple[tuple[int, ...], Any]],
    describe: Callable[..., list[Any]],
    addresses: Sequence[str],
) -> list[Any]:
    """Have each item described by a machine that has it, each machine's together."""
    loads = [0] * len(addresses)
    groups: dict[int, list[int]] = {}
    for place, (machines, _) in enumerate(items):
        best = min(machines, key=loads.__getitem__)
        loads[best] += 1
        groups.setdefault(best, []).append(place)
    tasks = [
        Task(describe, (tuple(items[place][1] for place in places),), (addresses[machine],), cpus=0)
        for machine, places in groups.items()
    ]
    found: list[Any] = [None] * len(items)
    for places, told in zip(groups.values(), run_tasks(tasks), strict=True):
        for place, one in zip(places, told, strict=True):
            found[place] = one
    return found


def _require_numbers(spec: BuildSpec, files: Sequence[tuple[EdgeName, Seen, EdgeFile]]) -> None:
    for name, seen, file in files:
        path = seen.window.path
        if file.text:
            raise InputError(
                f"ids in {path} are text: a build in stages takes ids that are the nodes' numbers, "
                "from 0",
                path=path,
                remedy="number the nodes from 0; or " + ON_ONE_MACHINE,
            )
        for end in (name[0], name[2]):
            node = spec.nodes[end]
            if file.kind == "snap" and node.ids == "auto" and not (node.count or node.arrays):
                raise InputError(
                    f"ids in {path}, of SNAP text, are made dense where nothing tells how many "
                    "nodes there are, and a build in stages does not",
                    path=path,
                    remedy="give num_nodes=, or ids='dense', where they are the nodes' numbers; or "
                    + ON_ONE_MACHINE,
                )


def _require_alike(files: Sequence[tuple[EdgeName, Seen, EdgeFile]]) -> None:
    """Columns of edge files that make one array look alike in all of them."""
    first: dict[tuple[EdgeName, str], tuple[str, Any]] = {}
    for name, seen, file in files:
        for array, look in file.arrays.items():
            path, before = first.setdefault((name, array), (seen.window.path, look))
            if before != look:
                raise InputError(
                    f"array {array!r} is {look[0]} {look[1]} in {seen.window.path} and "
                    f"{before[0]} {before[1]} in {path}",
                    path=seen.window.path,
                    column=array,
                    remedy="save the columns alike in all files",
                )


def _places(
    arrays: dict[str, Given], files: Files, addresses: Sequence[str], rows: dict[str, int]
) -> dict[str, ArrayPlace]:
    seen = {}
    for name, given in arrays.items():
        if len(files[given]) != 1:
            raise InputError(
                f"array {name!r} is of {len(files[given])} files, and takes one",
                path=given.pattern,
                remedy="save it as one .npy",
            )
        seen[name] = files[given][0]
    asked = [(one.machines, (one.window.path, name)) for name, one in seen.items()]
    told: list[ArrayFile] = _asked(asked, input_files.describe_arrays, addresses)
    found = {}
    for (name, one), file in zip(seen.items(), told, strict=True):
        if not file.in_order:
            raise InputError(
                f"{one.window.path} is stored column by column, and its rows are to go to machines",
                path=one.window.path,
                column=name,
                remedy="save it row by row: numpy.save(path, numpy.ascontiguousarray(array))",
            )
        rows[one.window.path] = file.shape[0]
        found[name] = ArrayPlace(
            window=one.window, machines=one.machines, dtype=file.dtype, row_shape=file.shape[1:]
        )
    return found


def _counts(
    spec: BuildSpec, arrays: dict[str, dict[str, ArrayPlace]], rows: dict[str, int]
) -> dict[str, int]:
    found = {}
    for name, node in spec.nodes.items():
        count, known_from = node.count, "num_nodes"
        for array, place in arrays.get(name, {}).items():
            path = place.window.path
            if count is None:
                count, known_from = rows[path], f"the rows of {path}"
            if rows[path] != count:
                raise InputError(
                    f"{path} has {rows[path]} rows for {count} nodes (by {known_from})",
                    path=path,
                    column=array,
                    value=str(rows[path]),
                    remedy="give one row for each node",
                )
        if count is not None:
            found[name] = count
    return found
