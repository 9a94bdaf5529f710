"""A loader over a dataset, with options at random: the batches of the peaceful one, every time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import overspill as ov
from soak.actors import ViolationError
from soak.building import home
from soak.inputs import loader_of, tensors_of
from soak.stage import Stage


def load(stage: Stage, chance: Random, *, recipe: str, packed: bool) -> dict[str, int]:
    """One or two epochs; every batch is held against its reference."""
    wanted = json.loads(stage.references.read_text())["batches"][recipe]
    options: dict[str, Any] = {"num_workers": chance.choice([0, 1, 2, 3])}
    options["lookahead"] = chance.choice([0, 0, 2, 4])
    options["hot_rows"] = chance.choice([None, "1MiB"])
    if options["num_workers"]:
        options["prefetch_factor"] = chance.choice([None, 1, 4])
        options["persistent_workers"] = chance.random() < 0.5
    else:
        options["prefetch_batches"] = chance.choice([None, 0, 3])
    if packed:
        options["pack"] = stage.packs / recipe
    print(recipe, options)
    dataset = ov.open_dataset(home(stage, recipe))
    loader = loader_of(recipe, dataset, **options)
    counts = {"batches": 0, "bytes loaded": 0}
    for _ in range(chance.choice([1, 2])):
        loader.set_epoch(0)
        for number, (digest, nbytes) in enumerate(_digests(loader)):
            if digest != wanted[number]:
                raise ViolationError(f"batch {number} of {recipe} is another one with {options}")
            counts["batches"] += 1
            counts["bytes loaded"] += nbytes
    if counts["batches"] % len(wanted):
        raise ViolationError(f"{counts['batches']} batches of {recipe}, not {len(wanted)} an epoch")
    return counts


def reference_batches(stage: Stage, recipe: str) -> list[str]:
    """The digests of the batches of a plain loader without workers."""
    loader = loader_of(recipe, ov.open_dataset(home(stage, recipe)))
    return [digest for digest, _ in _digests(loader)]


def _digests(loader: Any) -> Iterator[tuple[str, int]]:
    for batch in loader:
        digest, nbytes = hashlib.sha256(), 0
        for name, tensor in tensors_of(batch):
            content = tensor.contiguous().numpy()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(content)
            nbytes += content.nbytes
        yield digest.hexdigest(), nbytes
