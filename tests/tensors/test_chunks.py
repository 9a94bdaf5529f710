from __future__ import annotations

import numpy as np
import pytest
import torch

from overspill.tensors import chunks
from overspill.tensors.chunks import byte_chunks
from overspill.tensors.layouts import bytes_of, contiguous_stride

base = torch.arange(2 * 3 * 5 * 7, dtype=torch.float32).view(2, 3, 5, 7)
COMPLEX = torch.randn(6, 5, dtype=torch.complex64)

LAYOUTS = {
    "contiguous": base,
    "0-d": torch.tensor(3.5),
    "one element view": base[1, 1, 1, 1],
    "permuted": base.permute(3, 1, 0, 2),
    "transposed": base[0, 0].t(),
    "strided": base[:, ::2, :, ::3],
    "offset": base[1:],
    "expanded": torch.arange(4.0).view(1, 4).expand(9, 4),
    "expanded 0-d": torch.tensor(2.0).expand(3, 3),
    "conj": COMPLEX.conj(),
    "conj strided": COMPLEX.conj()[::2, 1:],
    "neg": COMPLEX.conj().imag,
    "complex128 strided": torch.randn(8, 3, dtype=torch.complex128).t(),
    "bool": torch.rand(9, 9).gt(0.5).t(),
    "bf16": torch.randn(9, 8, dtype=torch.bfloat16).t(),
    "fp8": torch.randn(9, 8).to(torch.float8_e4m3fn).t(),
    "uint64": torch.arange(12).to(torch.uint64).view(3, 4).t(),
    "empty": torch.empty(0, 7),
}


@pytest.mark.parametrize("chunk_bytes", [1, 16, 24, 100, 1 << 20])
@pytest.mark.parametrize("name", LAYOUTS)
def test_chunks_join_to_the_bytes_of_the_contiguous_tensor(
    name: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = LAYOUTS[name]
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
    pieces = [bytes(piece) for piece in byte_chunks(tensor)]
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    assert b"".join(pieces) == bytes(bytes_of(plain).tolist())
    assert all(0 < len(piece) <= max(chunk_bytes, tensor.element_size()) for piece in pieces)


def test_a_contiguous_tensor_is_not_copied() -> None:
    tensor = torch.arange(10)
    (piece,) = byte_chunks(tensor)
    tensor[0] = 255
    assert piece[0] == 255


def test_crossed_rows_come_in_more_chunks_from_a_longer_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 16 << 10)
    monkeypatch.setattr(
        chunks,
        "copy_in_tiles",
        lambda into, block: (seen.append(block.shape), np.copyto(into, block)),
    )
    tensor = torch.arange(1 << 16, dtype=torch.int32).view(1024, 64)
    for source, rows in ((tensor.t(), 16), (tensor[::2], 64)):
        seen.clear()
        pieces = [bytes(piece) for piece in byte_chunks(source)]
        assert b"".join(pieces) == source.contiguous().numpy().tobytes()
        assert max(map(len, pieces)) == 16 << 10 and {shape[0] for shape in seen} == {rows}


def test_sub_byte_dtypes_are_staged_although_torch_cannot_copy_them() -> None:
    held = torch.arange(24, dtype=torch.uint8)
    strided = held.view(torch.int4 if hasattr(torch, "int4") else torch.uint8)[::2]
    joined = b"".join(bytes(piece) for piece in byte_chunks(strided))
    assert joined == bytes(range(0, 24, 2))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 5), (1, 1)])
def test_strides_are_those_of_torch(shape: tuple[int, ...]) -> None:
    assert contiguous_stride(shape) == torch.empty(shape).stride()
