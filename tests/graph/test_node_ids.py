from __future__ import annotations

import numpy as np
import pytest
import torch

from overspill.errors import InputError
from overspill.graph.node_ids import lookup_ids, require_within, whole_ids


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


def test_raw_ids_are_found_in_any_order_with_repeats() -> None:
    raw = np.array([-5, 0, 7, 100, 2**62])
    assert lookup_ids(raw, np.array([2**62, -5, 7, 7]), what="ids").tolist() == [4, 0, 2, 2]


@pytest.mark.parametrize("raw", [[], [1, 5]])
@pytest.mark.parametrize("missing", [0, 3, 9])
def test_a_raw_id_that_no_node_has_is_named(raw: list[int], missing: int) -> None:
    with pytest.raises(InputError, match=f"1 of 1 ids .* first is {missing} at position 0"):
        lookup_ids(np.array(raw, dtype=np.int64), np.array([missing]), what="ids")
