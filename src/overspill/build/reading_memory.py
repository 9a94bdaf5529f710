"""How much memory reading the inputs takes beside the buffers of the plan."""

from __future__ import annotations

from overspill.build.inputs import Inputs
from overspill.build.readers.table import TableEdges


def reading_bytes(inputs: Inputs) -> int:
    """The most that pages of columns take that are read together; one table is read at a time."""
    edges = [reader for edge in inputs.edges for reader in edge.readers]
    arrays = [array for edge in inputs.edges for array in edge.arrays]
    arrays += [array for node in inputs.nodes.values() for array in node.arrays]
    pages = [reader.page_bytes for reader in edges if isinstance(reader, TableEdges)]
    pages += [part.page_bytes for array in arrays for part in array.parts]
    return max(pages, default=0)
