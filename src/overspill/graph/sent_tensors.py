"""Tensors as numpy arrays over the same memory, to be sent to a build's process."""

from __future__ import annotations

import torch

from overspill.build.readers.npy import bits_dtype, is_lacking
from overspill.errors import InputError


def as_numpy(value: object) -> object:
    """A dense tensor in main memory as numpy's view of it, whatever its strides.

    A type that numpy lacks becomes its bits, named as `npy.bits_dtype` has it.
    Nothing is copied, unless a tensor is lazily conjugated or negated.

    Args:
        value: Anything; what is no tensor is given back.

    Raises:
        InputError: The tensor is sparse, quantized, elsewhere, or of a type that nothing stores.
    """
    if not isinstance(value, torch.Tensor):
        return value
    if value.layout is not torch.strided or value.is_quantized:
        raise _unfit(value, "it is not dense", "convert it: .to_dense(), .dequantize()")
    if value.device.type != "cpu":
        raise _unfit(value, "it is not in main memory", "move it: .cpu()")
    held = value.detach().resolve_conj().resolve_neg()
    name = str(held.dtype).removeprefix("torch.")
    if is_lacking(name):
        bits = bits_dtype(name)
        wide = torch.uint16 if bits.itemsize == 2 else torch.uint8
        return held.view(wide).numpy().view(bits)
    try:
        return held.numpy()
    except TypeError as error:
        raise _unfit(value, "numpy has no such type", "convert it: .to(torch.float32)") from error


def _unfit(tensor: torch.Tensor, why: str, remedy: str) -> InputError:
    kind = f"{tensor.dtype} tensor on {tensor.device}"
    return InputError(f"a {kind} cannot be sent to the build: {why}", remedy=remedy)
