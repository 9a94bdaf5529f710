"""Reading a tensor back from its file: mapped or loaded, then every byte copied into memory.

The cache of the file is dropped first, so the device is what all wait for; the limit is reading it
with O_DIRECT. Who maps is at the mercy of the kernel's read-ahead: the machine's line tells it.
"""

from __future__ import annotations

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
from overspill.linux.cache import drop_cache
from overspill.linux.sequential import read_sequentially
from overspill.units import format_bytes

DEFAULT_BYTES = 2 << 30
OURS, FROM_FILE, LIMIT = "overspill, load_spilled_tensor", "torch.from_file", "device, O_DIRECT"
# The copy from the cache comes on top of the device.
_AT_LEAST = 0.5
_PAGE_BYTES = 4096

Load = Callable[[], torch.Tensor]


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """The case, over a file for each format.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the tensor, in whole pages; 2 GiB by default.

    Yields:
        The case.
    """
    size = max(1, (nbytes or DEFAULT_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
    with place_for(directory, 6 * size) as place:
        yield [_case(place, torch.empty(size, dtype=torch.uint8).random_())]


def _case(place: Path, source: torch.Tensor) -> Case:
    size = source.numel()
    raw = place / "raw.bin"
    source.numpy().tofile(raw)
    out = torch.zeros_like(source)
    peers, absent = _peers(place, source, raw)
    loads: dict[str, tuple[Path, Load]] = {
        OURS: (raw, lambda: ov.load_spilled_tensor(raw, torch.uint8, (size,))),
        FROM_FILE: (
            raw,
            lambda: torch.from_file(str(raw), shared=True, size=size, dtype=torch.uint8),
        ),
        "numpy.memmap": (raw, lambda: torch.from_numpy(np.memmap(raw, np.uint8, "r+"))),
        **peers,
    }
    contenders = [
        Contender(
            name=name,
            before=partial(_make_cold, path),
            act=partial(_copied, load, out),
            nbytes=size,
        )
        for name, (path, load) in loads.items()
    ]
    limit = Contender(
        name=LIMIT,
        before=partial(_make_cold, raw),
        act=lambda _: read_sequentially(raw),
        nbytes=size,
        note="into one buffer, over and over",
    )
    return Case(
        name=f"read {format_bytes(size)} in order, cold",
        contenders=[*contenders, limit],
        baseline=OURS,
        limit=LIMIT,
        targets=[
            SpeedTarget(of=OURS, against=FROM_FILE, at_least=0.9),
            SpeedTarget(of=OURS, against=LIMIT, at_least=_AT_LEAST),
        ],
        absent=absent,
    )


def _peers(
    place: Path, source: torch.Tensor, raw: Path
) -> tuple[dict[str, tuple[Path, Load]], list[str]]:
    size = source.numel()
    found: dict[str, tuple[Path, Load]] = {}
    absent = []
    saved = place / "saved.pt"
    torch.save(source, saved)
    found["torch.load, mapped"] = saved, lambda: torch.load(saved, mmap=True)
    safetensors = peer("safetensors.torch")
    if safetensors is None:
        absent.append("safetensors")
    else:
        safe, load = place / "held.safetensors", safetensors.load_file
        safetensors.save_file({"held": source}, safe)
        found["safetensors.torch.load_file"] = safe, lambda: load(safe)["held"]
    tensordict = peer("tensordict")
    if tensordict is None:
        absent.append("tensordict.MemoryMappedTensor")
    else:
        mapped = tensordict.MemoryMappedTensor.from_filename
        shape = torch.Size([size])
        found["tensordict.MemoryMappedTensor"] = (
            raw,
            lambda: mapped(filename=str(raw), dtype=torch.uint8, shape=shape),
        )
    joblib = peer("joblib")
    if joblib is None:
        absent.append("joblib.load")
    else:
        dumped, read = place / "dumped.joblib", joblib.load
        joblib.dump(source.numpy(), dumped)
        found["joblib.load"] = dumped, lambda: torch.from_numpy(read(dumped))
    return found, absent


def _copied(load: Load, out: torch.Tensor, _given: object) -> None:
    out.copy_(load())


def _make_cold(path: Path) -> Any:
    # Just written pages are dirty, and stay; what somebody still maps stays as well.
    dropped = drop_cache(path)
    if not dropped or dropped.resident_after_bytes:
        raise UnavailableError(f"{path} cannot be made cold: {dropped}")


if __name__ == "__main__":
    sys.exit(main([opened]))
