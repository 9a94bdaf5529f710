from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from overspill.errors import InputError
from overspill.graph.node_ids import as_texts, require_within, whole_ids


@pytest.mark.parametrize(
    "ids",
    [[3, 1], torch.tensor([3, 1], dtype=torch.int32), np.array([3, 1], np.uint64), (3, 1)],
)
def test_ids_of_any_whole_kind_become_int64(ids: object) -> None:
    held = whole_ids(ids)  # type: ignore[arg-type]
    assert held.dtype == np.int64 and held.tolist() == [3, 1]


def test_no_ids_are_no_error() -> None:
    assert whole_ids([]).size == whole_ids(torch.empty(0, dtype=torch.int64)).size == 0


@pytest.mark.parametrize(
    "ids",
    [
        torch.tensor([True, False]),
        torch.tensor([1.0]),
        torch.tensor([[1]]),
        np.array([2**63 + 5], np.uint64),
        torch.tensor(1),
    ],
)
def test_what_is_no_list_of_whole_numbers_is_refused(ids: object) -> None:
    with pytest.raises(InputError):
        whole_ids(ids)  # type: ignore[arg-type]


def test_ids_out_of_range_are_named_and_counted() -> None:
    with pytest.raises(InputError, match=r"2 of 4 seeds .* first is 12 at position 1.*10 nodes"):
        require_within(np.array([0, 12, 3, -1]), 10, what="seeds")


TEXTS = ["007", "7", "", "é"]


@pytest.mark.parametrize(
    "ids",
    [
        TEXTS,
        tuple(TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, object),
        pa.array(TEXTS),
        [np.str_(text) for text in TEXTS],
    ],
)
def test_strings_of_any_kind(ids: Any) -> None:
    found = as_texts(ids)
    assert found == TEXTS


@pytest.mark.parametrize("ids", [[], (), np.empty(0, np.int64), torch.empty(0), range(0)])
def test_no_ids_are_of_any_kind(ids: Any) -> None:
    assert as_texts(ids) == []


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2],
        np.array([1]),
        np.array([[1]]),
        np.array([1, 2.5]),
        torch.tensor([1]),
        torch.tensor(1),
        range(3),
        iter(["a"]),
        {1, 2},
    ],
)
def test_what_is_no_text_is_left_to_others(ids: Any) -> None:
    assert as_texts(ids) is None


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ("007", "one string"),
        (b"007", "one string"),
        (["007", 7], "position 1 is 7"),
        ([None, "7"], "position 0 is None"),
        (np.array([b"7"]), "bytes"),
        (pa.array(["7", None]), "position 1 is None"),
    ],
)
def test_strings_among_other_things_are_refused(ids: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        as_texts(ids)
