"""Files of the run say what they hold, by whatever way the tensor came to be there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

import overspill as ov
from overspill.storage.spill_records import TensorRecord, recorded_tensor


def recorded(tensor: torch.Tensor | None) -> TensorRecord | None:
    assert tensor is not None
    path = tensor.untyped_storage().filename
    assert path is not None
    fd = os.open(path, os.O_RDONLY)
    try:
        return recorded_tensor(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.bfloat16, "bfloat16"), (torch.float8_e4m3fn, "float8_e4m3fn"), (torch.bool, "bool")],
)
def test_spilled_and_allocated(dtype: torch.dtype, name: str, spill_dir: Path) -> None:
    source = torch.zeros((3, 4), dtype=dtype)
    assert recorded(ov.spill_tensor_to_disk(source.t())) == TensorRecord(name, (4, 3))
    assert recorded(ov.allocate_disk_backed((2, 5), dtype)) == TensorRecord(name, (2, 5))
    assert recorded(ov.allocate_preshared((7,), dtype)) == TensorRecord(name, (7,))
    scalar = ov.spill_tensor_to_disk(torch.zeros((), dtype=dtype))
    assert recorded(scalar) == TensorRecord(name, ())


def test_concatenated(spill_dir: Path) -> None:
    chunks = [(torch.zeros(2, 3), torch.arange(2)) for _ in range(4)]
    rows, ids = ov.concatenate_chunks(chunks)
    assert recorded(rows) == TensorRecord("float32", (8, 3))
    assert recorded(ids) == TensorRecord("int64", (8,))


def test_columns_of_a_csr(spill_dir: Path) -> None:
    edges = torch.randint(7, (2, 500))
    with ov.settings(random_access_reserve_bytes=1 << 50):  # no room in memory
        csr = ov.build_csr(*edges, 7)
    assert recorded(csr.indices) == TensorRecord("int32", (500,))


def test_a_disk_that_takes_no_attributes_holds_the_same_tensor(
    spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuses(*arguments: object) -> None:
        asked.append(arguments)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuses)
    spilled = ov.spill_tensor_to_disk(torch.arange(10), required=True)
    assert asked and torch.equal(spilled, torch.arange(10))
    assert recorded(spilled) is None
