from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import overspill as ov
from overspill.errors import InputError
from overspill.tensors.layouts import tensor_over
from overspill.tensors.shapes import checked_nbytes, checked_shape


@pytest.mark.parametrize(
    "shape",
    [(0, 2**62, 2**62), (0, 2**63), (2**63, 0), (0, 2**32, 2**31), (2**70,), (2**40, 2**40)],
)
@pytest.mark.parametrize("ask", [ov.allocate_preshared, ov.plan_placement, ov.allocate_disk_backed])
def test_what_overflows_is_refused_also_where_no_byte_is_needed(
    ask: Any, shape: tuple[int, ...]
) -> None:
    with pytest.raises(InputError, match="overflows") as caught:
        ask(shape, torch.float32)
    assert caught.value.remedy


def test_every_shape_that_is_let_through_is_one_that_torch_can_make() -> None:
    draw = random.Random(5)
    sizes = [0, 1, 3, 2**31, 2**32 - 1, 2**61, 2**62, 2**63 - 1, 2**63]
    storage = torch.UntypedStorage(0)
    passed = refused = 0
    for _ in range(2000):
        shape = tuple(draw.choice(sizes) for _ in range(draw.randint(1, 5)))
        if 0 not in shape:
            shape = (*shape, 0)
        try:
            assert checked_nbytes(checked_shape(shape), torch.float64) == 0
        except InputError:
            refused += 1
            with pytest.raises((RuntimeError, TypeError), match=r"[Oo]verflow"):
                torch.empty(shape, dtype=torch.float64)
        else:
            passed += 1
            assert tensor_over(storage, torch.float64, shape).shape == shape
    assert passed > 100 and refused > 100


def test_a_scalar() -> None:
    assert checked_nbytes(checked_shape(()), torch.int32) == 4
