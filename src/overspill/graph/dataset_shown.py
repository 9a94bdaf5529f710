"""A dataset in one line, and as a table for notebooks: by its manifest, no file is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from overspill.storage.manifest import EdgeTypeRecord, Manifest, NodeTypeRecord
from overspill.storage.records import FileRecord
from overspill.units import format_bytes

# A person reads no further; a knowledge graph has thousands of types.
_MOST_TYPES = 8
_MOST_ROWS = 200
_Row = tuple[str, str, str, str]


def dataset_line(path: Path, manifest: Manifest) -> str:
    """The one line that ``repr()`` gives."""
    nodes, edges = manifest.node_types.values(), manifest.edge_types.values()
    told = (
        f"Dataset({str(path)!r}, num_nodes={sum(node.count for node in nodes)}, "
        f"num_edges={sum(edge.count for edge in edges)}"
    )
    if len(nodes) > 1 or len(edges) > 1:
        told += f", node_types={_first(list(manifest.node_types))}"
        told += f", edge_types={_first(list(manifest.edge_types))}"
    return told + ")"


def dataset_html(path: Path, manifest: Manifest) -> str:
    """A table of types and arrays, in the notebook's own colours."""
    rows = [*_node_rows(manifest), *_edge_rows(manifest)]
    total = format_bytes(sum(record.nbytes for record in manifest.files()))
    caption = f"<code>{escape(str(path))}</code>, {total} on disk"
    if manifest.partition is not None:
        caption += f", part {manifest.partition.index} of {manifest.partition.num_parts}"
    body = "".join(_html_row(row) for row in rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        body += f"<tr><td colspan='4'>and {len(rows) - _MOST_ROWS} more</td></tr>"
    return (
        "<table><caption style='text-align:left'><b>Dataset</b> "
        f"{caption}</caption><thead><tr><th>what</th><th>dtype</th><th>shape</th><th>size</th>"
        f"</tr></thead><tbody>{body}</tbody></table>"
    )


def _node_rows(manifest: Manifest) -> Iterator[_Row]:
    for node in manifest.node_types.values():
        yield _node_title(node)
        for name, record in node.arrays.items():
            yield _array_row(name, record)


def _edge_rows(manifest: Manifest) -> Iterator[_Row]:
    for edge in manifest.edge_types.values():
        yield _edge_title(edge)
        for layout, parts in edge.layouts.items():
            for part, record in parts.items():
                yield _array_row(f"{layout} {part}", record)
            for name, record in edge.arrays.get(layout, {}).items():
                yield _array_row(f"{layout} array {name}", record)


def _node_title(node: NodeTypeRecord) -> _Row:
    return f"{node.name}: {node.count:,} nodes", "", "", ""


def _edge_title(edge: EdgeTypeRecord) -> _Row:
    return f"{' → '.join(edge.key)}: {edge.count:,} edges", "", "", ""


def _array_row(name: str, record: FileRecord) -> _Row:
    shape = " x ".join(f"{size:,}" for size in record.shape)
    return name, record.dtype, shape, format_bytes(record.nbytes)


def _html_row(row: _Row) -> str:
    what, *rest = (escape(cell) for cell in row)
    if not any(rest):
        return f"<tr><th colspan='4' style='text-align:left'>{what}</th></tr>"
    cells = "".join(f"<td>{cell}</td>" for cell in rest)
    return f"<tr><td style='text-align:left'>{what}</td>{cells}</tr>"


def _first(names: list[object]) -> str:
    if len(names) <= _MOST_TYPES:
        return str(names)
    told = ", ".join(repr(name) for name in names[:_MOST_TYPES])
    return f"[{told}, and {len(names) - _MOST_TYPES} more]"
