from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from overspill.build.moving.fill import fill_element
from overspill.errors import InputError
from overspill.storage.records import STORED_DTYPES, numpy_view_dtype

_NO_NUMPY = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("dtype", STORED_DTYPES)
@pytest.mark.parametrize("value", [0, 1, True])
def test_small_numbers_fit_everything(dtype: str, value: Any) -> None:
    element = fill_element(value, dtype)
    assert element.dtype == numpy_view_dtype(dtype) and element.shape == (1,)
    wanted = torch.tensor([value]).to(getattr(torch, dtype))
    assert element.tobytes() == wanted.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", _NO_NUMPY)
def test_what_numpy_lacks_is_rounded_as_torch_does(dtype: str) -> None:
    rng = np.random.default_rng(4)
    values = [0.1, -0.1, -0.0, 2**-9, 3 * 2**-10, 1.0625, 1.1875, 447.0, -448.0, 1e-30]
    values += (rng.normal(size=200) * 10.0 ** rng.integers(-3, 3, 200)).tolist()
    for value in values:
        if abs(value) > 448:
            continue
        wanted = torch.tensor([value], dtype=torch.float64).to(getattr(torch, dtype))
        found = torch.from_numpy(fill_element(value, dtype).view(np.uint8))
        assert found.tolist() == wanted.view(torch.uint8).tolist(), value
    assert torch.from_numpy(fill_element(math.nan, dtype)).view(getattr(torch, dtype)).isnan()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("bool", 2),
        ("uint8", -1),
        ("uint8", 256),
        ("int8", 128),
        ("int32", 2**31),
        ("int64", 0.5),
        ("int64", 2**63),
        ("int64", math.nan),
        ("uint64", math.inf),
        ("float16", 65520),
        ("float32", 1e39),
        ("float32", 1j),
        ("float64", 10**400),
        ("bfloat16", 3.4e38),
        ("float8_e4m3fn", 449),
        ("float8_e4m3fn", math.inf),
        ("float8_e5m2", -57345.0),
        ("int16", "7"),
        ("float32", "7"),
        ("float32", None),
    ],
)
def test_what_does_not_fit_is_refused(dtype: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"does not fit {dtype}") as caught:
        fill_element(value, dtype)
    assert caught.value.value == repr(value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
@pytest.mark.parametrize("sign", [1, -1])
def test_infinities(dtype: str, sign: int) -> None:
    found = torch.from_numpy(fill_element(sign * math.inf, dtype)).view(getattr(torch, dtype))
    assert found.item() == sign * math.inf


def test_whole_numbers_are_exact() -> None:
    assert fill_element(2**64 - 1, "uint64")[0] == 2**64 - 1
    assert fill_element(-(2**63), "int64")[0] == -(2**63)
    assert fill_element(3 + 4j, "complex64")[0] == 3 + 4j
