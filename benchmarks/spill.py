"""Spilling a tensor: from memory to a tensor over a file, with the data on the disk.

Every contender syncs its file before the clock stops: without it, the fastest is whoever leaves the
most dirty pages behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import overspill as ov
from benchmarks.command import main
from benchmarks.harness import Case, Contender, SpeedTarget
from benchmarks.peers import peer
from benchmarks.place import place_for
from overspill.errors import UnavailableError
from overspill.linux.sequential import write_sequentially
from overspill.units import format_bytes

DEFAULT_BYTES = 2 << 30
OURS = "overspill"
LIMIT = "device, O_DIRECT"
MAPPED = "copy through the mapping"
# What the transposed source is made of: two interleaved streams of rows this long.
_ROW_BYTES = 512


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """The case, with its source in memory and its files in a directory of its own.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the tensor, rounded to whole rows; 2 GiB by default.

    Yields:
        The case.
    """
    size = max(1, (nbytes or DEFAULT_BYTES) // (2 * _ROW_BYTES)) * 2 * _ROW_BYTES
    # Twice: a peer that replaces its file holds two for a moment.
    with place_for(directory, 2 * size) as place:
        source = torch.empty(size, dtype=torch.uint8).random_()
        yield [_case(place, source)]


def _case(place: Path, source: torch.Tensor) -> Case:
    size = source.numel()
    target = place / "contender.bin"
    crossed = source.view(-1, 2, _ROW_BYTES).transpose(0, 1)
    peers, absent = _peers(target, source)
    contenders = [
        Contender(name=OURS, act=lambda _: _spilled(source), after=_forget, nbytes=size),
        Contender(
            name="overspill, transposed source",
            act=lambda _: _spilled(crossed),
            after=_forget,
            nbytes=size,
        ),
        _through_file(MAPPED, target, size, lambda: _copy_through_mapping(target, source)),
        _through_file("numpy.memmap", target, size, lambda: _memmap(target, source)),
        *peers,
        _through_file(LIMIT, target, size, lambda: _write_directly(target, source)),
    ]
    return Case(
        name=f"spill {format_bytes(size)}",
        contenders=contenders,
        baseline=OURS,
        limit=LIMIT,
        targets=[
            SpeedTarget(of=OURS, against=MAPPED, at_least=2.0),
            SpeedTarget(of=OURS, against=LIMIT, at_least=0.75),
        ],
        absent=absent,
    )


def _peers(target: Path, source: torch.Tensor) -> tuple[list[Contender], list[str]]:
    ways: dict[str, tuple[str, Callable[[Any], object]]] = {
        "torch.save": ("torch", lambda torch: torch.save(source, target)),
        "safetensors.torch.save_file": (
            "safetensors.torch",
            lambda safetensors: safetensors.save_file({"held": source}, target),
        ),
        "tensordict.MemoryMappedTensor": (
            "tensordict",
            lambda tensordict: tensordict.MemoryMappedTensor.from_tensor(
                source, filename=str(target), existsok=True
            ),
        ),
        "joblib.dump": ("joblib", lambda joblib: joblib.dump(source.numpy(), target)),
    }
    found, absent = [], []
    for name, (library, write) in ways.items():
        module = peer(library)
        if module is None:
            absent.append(name)
        else:
            act = partial(_written, target, partial(write, module))
            found.append(_through_file(name, target, source.numel(), act, "then fsync"))
    return found, absent


def _written(target: Path, write: Callable[[], object]) -> object:
    held = write()
    _sync(target)
    return held


def _through_file(name: str, target: Path, nbytes: int, make: Any, note: str = "") -> Contender:
    def remove(_result: object) -> None:
        target.unlink(missing_ok=True)

    return Contender(name=name, act=lambda _: make(), after=remove, nbytes=nbytes, note=note)


def _spilled(source: torch.Tensor) -> torch.Tensor:
    held: torch.Tensor | None = ov.spill_tensor_to_disk(source, required=True)
    assert held is not None
    return held


def _forget(held: torch.Tensor | None) -> None:
    if held is not None:
        Path(str(held.untyped_storage().filename)).unlink()


def _copy_through_mapping(target: Path, source: torch.Tensor) -> torch.Tensor:
    held: torch.Tensor = torch.from_file(
        str(target), shared=True, size=source.numel(), dtype=torch.uint8
    )
    held.copy_(source)
    _sync(target)
    return held


def _memmap(target: Path, source: torch.Tensor) -> object:
    held = np.memmap(target, dtype=np.uint8, mode="w+", shape=(source.numel(),))
    held[:] = source.numpy()
    held.flush()  # msync, which waits for the disk
    return held


def _write_directly(target: Path, source: torch.Tensor) -> None:
    if not write_sequentially(target, source.numel(), _pattern(source)):
        raise UnavailableError(
            "the disk has no direct I/O, so its limit cannot be measured", path=str(target)
        )


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _pattern(source: torch.Tensor) -> bytes:
    return source[: 1 << 20].numpy().tobytes()


if __name__ == "__main__":
    sys.exit(main([opened]))
