"""Any small graph of any types, in any number of parts by any method, equals the plainest way."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import overspill as ov
from overspill.build.parting import split_moves, split_owners
from overspill.storage.part_records import METHODS
from parted import require_parts, write_typed

TYPES = [("user", "buys", "item"), ("item", "of", "user"), ("user", "knows", "user")]
counts = st.sampled_from([0, 1, 3, 25])


@given(
    users=counts,
    items=counts,
    edges=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    layouts=st.sampled_from([("csc",), ("csr",), ("csc", "csr")]),
    raw=st.sampled_from(["dense", "remap", "text", "renumbered"]),
    method=st.sampled_from(METHODS),
    num_parts=st.sampled_from([1, 2, 5]),
    piece_bytes=st.sampled_from([24, 1 << 16]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=15, deadline=None)
def test_parts_equal_the_rows_of_their_nodes(
    users: int,
    items: int,
    edges: list[int],
    layouts: tuple[str, ...],
    raw: str,
    method: str,
    num_parts: int,
    piece_bytes: int,
    seed: int,
) -> None:
    nodes = {"user": users, "item": items}
    sizes = {
        key: number if nodes[key[0]] and nodes[key[2]] else 0
        for key, number in zip(TYPES, edges, strict=True)
    }
    with (
        tempfile.TemporaryDirectory() as place,
        mock.patch.object(split_moves, "PIECE_BYTES", piece_bytes),
        mock.patch.object(split_moves, "_GROUP", 3),
        mock.patch.object(split_owners, "NODES_A_PIECE", 7),
        mock.patch.object(os, "fsync"),  # durability is tested elsewhere
    ):
        graph = write_typed(
            Path(place, "whole"),
            nodes,
            sizes,
            layouts=layouts,
            raw={"user": raw},
            index_dtype=np.int64 if seed % 2 else np.int32,
            seed=seed,
        )
        found = ov.partition_dataset(
            Path(place, "whole"), num_parts, out=Path(place, "out"), method=method
        )
        require_parts(graph, found, method, num_parts)
