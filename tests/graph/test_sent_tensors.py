"""Tensors become numpy's views of the same memory, of every type that can be stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overspill.build.readers.npy import bits_dtype, read_npy_header
from overspill.build.readers.source import SourceFile
from overspill.build.sending.outgoing import Outgoing
from overspill.errors import InputError
from overspill.graph.sent_tensors import as_numpy
from overspill.storage.records import STORED_DTYPES, numpy_view_dtype
from sending import taken_in


@pytest.mark.parametrize("name", STORED_DTYPES)
def test_every_type_that_can_be_stored(tmp_path: Path, name: str) -> None:
    bits = torch.arange(48, dtype=torch.uint8).reshape(6, -1)
    tensor = (bits % 2).bool() if name == "bool" else bits.view(getattr(torch, name))
    streams = Outgoing(as_numpy)
    assert streams.add(tensor, what="node_features['x']") == "stream:0"
    with taken_in(tmp_path / "out", streams) as arrived:
        (path,) = arrived.names
        file = read_npy_header(SourceFile.check(path))
        assert (file.type_name, file.dtype) == (name, numpy_view_dtype(name))
        assert (file.shape, file.fortran) == (tuple(tensor.shape), False)
        payload = Path(path).read_bytes()[file.offset :]
    assert payload == tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float8_e5m2])
def test_strided_views_share_the_memory(dtype: torch.dtype) -> None:
    base = torch.zeros(8, 6).to(dtype)
    for view in (
        base.T,
        base[::2, 1:4],
        base[3],
        base.expand(2, 8, 6),
        torch.nn.Parameter(base, False),
    ):
        held = as_numpy(view)
        assert isinstance(held, np.ndarray) and held.shape == tuple(view.shape)
        assert held.strides == tuple(s * view.element_size() for s in view.stride())
        assert held.__array_interface__["data"][0] == view.data_ptr()


def test_values_of_lazy_tensors() -> None:
    held = as_numpy(torch.tensor([1 + 2j]).conj())
    assert isinstance(held, np.ndarray) and held.tolist() == [1 - 2j]
    held = as_numpy(torch.tensor([1.0, 2.0], requires_grad=True))
    assert isinstance(held, np.ndarray) and held.tolist() == [1.0, 2.0]


def test_chunks_and_pairs_of_tensors(tmp_path: Path) -> None:
    sources, targets = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6], dtype=torch.int32)
    for number, value in enumerate([[sources, targets], iter([(sources, targets)])]):
        streams = Outgoing(as_numpy)
        streams.add(value, what="edges")
        with taken_in(tmp_path / str(number), streams) as arrived:
            found = np.load(next(iter(arrived.names)))
        assert sorted(map(sorted, found.tolist() if number else found.T.tolist())) == [
            [1, 4],
            [2, 5],
            [3, 6],
        ]


@pytest.mark.parametrize("value", [None, 3, "x", np.ones(2), [torch.ones(2)]])
def test_what_is_no_tensor_is_given_back(value: Any) -> None:
    assert as_numpy(value) is value


@pytest.mark.filterwarnings("ignore")  # of torch, about what is old and what is new
@pytest.mark.parametrize(
    ("make", "told", "remedy"),
    [
        (lambda: torch.eye(2).to_sparse(), "not dense", "to_dense"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
            "not dense",
            "dequantize",
        ),
        (lambda: torch.ones(2, device="meta"), "on meta .* not in main memory", "cpu"),
        (lambda: torch.ones(2, dtype=torch.complex32), "numpy has no such type", "float32"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: [tensor, tensor]])
def test_tensors_that_are_refused(
    make: Callable[[], torch.Tensor], told: str, remedy: str, wrap: Callable[[Any], Any]
) -> None:
    with pytest.raises(InputError, match=told) as caught:
        Outgoing(as_numpy).add(wrap(make()), what="edges")
    assert remedy in str(caught.value) and caught.value.path == "edges (sent from memory)"


def test_names_of_types() -> None:
    assert bits_dtype("bfloat16").descr == [("bfloat16", "<u2")]
