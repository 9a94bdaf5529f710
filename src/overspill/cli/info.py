"""``overspill info``: what a dataset holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from overspill.cli.json_output import say_json
from overspill.cli.lines import columns_of, glued, harmless, harmless_lines, say, table, wrapped
from overspill.units import format_bytes

_DIRECTION = {"csc": "in-degree", "csr": "out-degree"}
_WIDEST_BAR = 32
_NARROWEST_BAR = 4


def info(
    dataset: Annotated[str, typer.Argument(help="The directory of a dataset, or of its parts.")],
    degrees: Annotated[
        bool, typer.Option("--degrees/--no-degrees", help="Count neighbours, or headers only.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead.")] = False,
) -> None:
    """Show types, counts, arrays, dtypes and sizes of a dataset, and how its edges spread.

    Reads headers, and for the degrees 8 bytes a node and layout, once, past the page cache. Exit
    status 1 where a file is missing, cut or damaged.

    --json gives an object with path, kind ("dataset"), format_version, identifier, created,
    overspill_version, size_bytes, node_types and edge_types (count, arrays with name, dtype, shape,
    size_bytes, path and ok, notes; of edges by layout, with degrees: rows, edges, largest, mean,
    median and bins of least, most and rows), partition, options, sources and problems; or of a
    partition with parts and books.
    """
    from overspill.cli.holdings import dataset_holdings, is_partition, partition_holdings
    from overspill.cli.progress import PhaseBars

    path = Path(dataset)
    if is_partition(path):
        found = partition_holdings(path)
    else:
        with PhaseBars(quick=True) as bars:
            found = dataset_holdings(
                path,
                degrees=degrees,
                tell=lambda done, total: bars.update("count neighbours", done, total, "B"),
            )
    if as_json:
        say_json(found)
    else:
        columns = columns_of(sys.stdout)
        shown = _partition_text if found["kind"] == "partition" else _dataset_text
        typer.echo("\n".join(shown(found, columns)))
    for problem in found["problems"]:
        say(f"overspill: {harmless_lines(problem)}", err=True, indent=2)
    if found["problems"]:
        raise typer.Exit(1)


def _dataset_text(found: dict[str, Any], columns: int | None) -> Iterator[str]:
    yield table(list(_rows(found)), columns, right=(3,))
    for key, edge in found["edge_types"].items():
        for layout, held in edge["layouts"].items():
            if held["degrees"]:
                yield ""
                yield from _degree_text(f"{_DIRECTION[layout]} of {key}", held["degrees"], columns)
    yield ""
    part = found["partition"]
    if part is not None:
        yield f"part {part['index']} of {part['num_parts']}, by {harmless(part['method'])}"
    yield f"{format_bytes(found['size_bytes'])} in all"
    yield wrapped(_origin(found), columns, indent=2)


def _origin(found: dict[str, Any]) -> str:
    return harmless(f"built {found['created']} by overspill {found['overspill_version']}")


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, node in found["node_types"].items():
        yield (f"{harmless(name)}: {node['count']:,} nodes",)
        yield from map(_array_row, node["arrays"])
        yield from _note_rows(node["notes"])
    for edge in found["edge_types"].values():
        key = harmless(" -> ".join((edge["source"], edge["relation"], edge["target"])))
        yield (f"{key}: {edge['count']:,} edges",)
        for held in edge["layouts"].values():
            yield from map(_array_row, held["arrays"])
        yield from _note_rows(edge["notes"])


def _array_row(array: dict[str, Any]) -> tuple[str, ...]:
    shape = " x ".join(f"{n:,}" for n in array["shape"])
    size = format_bytes(array["size_bytes"]) if array["ok"] else "damaged"
    return f"  {harmless(array['name'])}", array["dtype"], shape, size


def _note_rows(notes: dict[str, int]) -> Iterator[tuple[str, ...]]:
    for note, count in notes.items():
        yield (f"  {harmless(note.replace('_', ' '))}: {count:,}",)


def _degree_text(title: str, degrees: dict[str, Any], columns: int | None) -> Iterator[str]:
    """A histogram in powers of two, its bars as long as the line allows."""
    yield wrapped(harmless(title), columns, indent=2)
    summary = f"mean {degrees['mean']:.1f}", f"median {degrees['median']:,}"
    parts = ", ".join(map(glued, (*summary, f"largest {degrees['largest']:,}")))
    yield wrapped(f"  {parts}", columns)
    rows = [(_span(one), f"{one['rows']:,}", one["rows"]) for one in degrees["bins"]]
    widths = [max((len(row[place]) for row in rows), default=0) for place in (0, 1)]
    room = _WIDEST_BAR if columns is None else min(_WIDEST_BAR, columns - sum(widths) - 6)
    most = max((count for _, _, count in rows), default=0)
    for span, told, count in rows:
        # A bin that is not empty shows at least a mark.
        length = -(-count * room // most) if most and room >= _NARROWEST_BAR else 0
        yield f"  {span:>{widths[0]}}  {told:>{widths[1]}}  {'#' * length}".rstrip()


def _span(one: dict[str, Any]) -> str:
    return (
        f"{one['least']:,}" if one["least"] == one["most"] else f"{one['least']:,}-{one['most']:,}"
    )


def _partition_text(found: dict[str, Any], columns: int | None) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("part", "nodes", "edges", "size")]
    for part in found["parts"]:
        if not part["ok"]:
            rows.append((harmless(part["path"]), "", "", "damaged"))
            continue
        counts = f"{part['nodes']:,}", f"{part['edges']:,}"
        rows.append((harmless(part["path"]), *counts, format_bytes(part["size_bytes"])))
    yield table(rows, columns, right=(1, 2, 3))
    yield ""
    books = [
        (f"book of {harmless(name)}", *_array_row(book)[1:])
        for name, book in found["books"].items()
    ]
    yield table(books, columns, right=(3,))
    yield f"{len(found['parts'])} parts, by {harmless(found['method'])}"
    yield wrapped(_origin(found), columns, indent=2)
