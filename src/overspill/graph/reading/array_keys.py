"""How arrays are named across node and edge types."""

from __future__ import annotations

from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.dataset_records import named_array
from overspill.storage.records import FileRecord

Owner = str | EdgeType  # the node or edge type whose nodes or edges number the rows
ArrayKey = tuple[Owner, str]


def record_of(dataset: Dataset, key: ArrayKey) -> FileRecord:
    """What the manifest says of an array; of an edge array, as the edges lie in CSC order.

    Raises:
        InputError: No such type or array; the message names those there are.
    """
    owner, name = key
    if isinstance(owner, str):
        held = dataset.node_record(owner).arrays
        told = f"node type {owner!r}"
    else:
        held = dataset.edge_record(owner).arrays.get("csc", {})
        told = f"edge type {owner}"
    return named_array(held, name, of=told, path=dataset.path)
