from __future__ import annotations

import numpy as np
import pytest
import torch

from overspill.errors import UnsupportedTensorError
from overspill.tensors.dtypes import MAPPABLE_DTYPES, dtype_name, is_mappable, torch_dtype


def test_every_mappable_dtype_comes_back_by_its_name() -> None:
    assert len(MAPPABLE_DTYPES) >= 23
    for dtype in MAPPABLE_DTYPES:
        assert torch_dtype(dtype_name(dtype)) is dtype
        assert is_mappable(dtype)


def test_only_quantized_dtypes_are_left_out() -> None:
    known = {held for held in vars(torch).values() if isinstance(held, torch.dtype)}
    left_out = {dtype_name(dtype) for dtype in known - set(MAPPABLE_DTYPES)}
    assert left_out == {"qint8", "qint32", "quint8", "quint4x2", "quint2x4"}


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "float16", "complex64", "complex128"])
def test_names_are_numpys_where_numpy_has_the_dtype(name: str) -> None:
    assert torch_dtype(name).itemsize == np.dtype(name).itemsize


@pytest.mark.parametrize("name", ["qint8", "float7", "", "dtype", "Tensor", "nn"])
def test_a_name_that_is_no_mappable_dtype_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedTensorError, match="float32"):
        torch_dtype(name)


def test_what_is_no_dtype_is_not_mappable() -> None:
    assert not is_mappable("float32")
    assert not is_mappable(torch.qint8)
