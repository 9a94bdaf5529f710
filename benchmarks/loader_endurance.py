"""Loaders for a long time: workers' memory and /dev/shm stay flat, and no epoch hangs.

``python -m benchmarks.loader_endurance``: four spawned workers make node and link batches of
several types, 200 epochs and 2,000 batches of each kind; then fresh workers, forked and spawned,
epoch after epoch. Prints what a process grew by, and fails where that is not flat, or where a batch
does not come.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import overspill as ov
from benchmarks.place import place_for
from overspill.graph.dataset import Dataset
from overspill.linux.processes import process_memory
from overspill.pyg import LinkNeighborLoader, NeighborLoader
from overspill.units import format_bytes

BUYS, LIKED = ("user", "buys", "item"), ("item", "liked_by", "user")
FLAT_BYTES = 8 << 20
# Buffers grow to the largest batch for a while.
_WARM_SHARE = 0.2
_HANG_SECONDS = 120
_NODES, _EDGES = 60_000, 600_000


@dataclass(frozen=True)
class Endured:
    """What a run of epochs was found to do.

    Attributes:
        name: Which loader.
        epochs: Epochs.
        batches: Batches of all of them.
        grown_bytes: The most that a process's anonymous memory grew by once it was warm.
        shm_bytes: What /dev/shm held more at the end than at the start.
    """

    name: str
    epochs: int
    batches: int
    grown_bytes: int
    shm_bytes: int

    @property
    def is_flat(self) -> bool:
        """Whether memory and /dev/shm stayed as they were."""
        return self.grown_bytes <= FLAT_BYTES and self.shm_bytes <= FLAT_BYTES


def build_shop(directory: Path, *, nodes: int = _NODES, edges: int = _EDGES) -> Dataset:
    """Build users that buy items, with rows of both and of the purchases."""
    rng = np.random.default_rng(0)
    counts = {"user": nodes, "item": nodes // 2}
    users, items = rng.integers(0, nodes, edges), rng.integers(0, nodes // 2, edges)
    built: Dataset = ov.build_dataset(
        directory,
        edges={BUYS: np.stack([users, items]), LIKED: np.stack([items, users])},
        num_nodes=counts,
        node_features={
            type: {"x": rng.random((count, 32), dtype=np.float32)} for type, count in counts.items()
        },
        edge_features={BUYS: {"w": rng.random(edges, dtype=np.float32)}},
    )
    return built


def endure_persistent(
    dataset: Dataset, kind: str, *, epochs: int, batches: int, workers: int
) -> Endured:
    """Epochs by the same spawned workers.

    Args:
        dataset: As `build_shop` makes it.
        kind: "nodes" or "links".
        epochs: Epochs.
        batches: Batches an epoch.
        workers: Worker processes.
    """
    loader = _loader(dataset, kind, batches, workers, "spawn", persistent_workers=True)
    before = shm_bytes()
    seen: list[dict[int, int]] = []
    for _ in range(epochs):
        held = _epoch(loader, batches)
        seen.append(_anonymous(held))
        del held
    grown = max(_growth([epoch[pid] for epoch in seen]) for pid in seen[0])
    _stop(loader)
    name = f"{kind}, {workers} spawned workers"
    return Endured(name, epochs, epochs * batches, grown, shm_bytes() - before)


def endure_fresh(
    dataset: Dataset, method: str, *, epochs: int, batches: int, workers: int
) -> Endured:
    """Epochs by workers that are started for each; what this process grows by is told."""
    loader = _loader(dataset, "nodes", batches, workers, method, persistent_workers=False)
    before = shm_bytes()
    seen = []
    for _ in range(epochs):
        held = _epoch(loader, batches)
        del held
        seen.append(process_memory().anon_bytes)
    name = f"nodes, {workers} workers by {method} an epoch"
    return Endured(name, epochs, epochs * batches, _growth(seen), shm_bytes() - before)


def shm_bytes() -> int:
    """What /dev/shm holds now."""
    held = os.statvfs("/dev/shm")
    return (held.f_blocks - held.f_bfree) * held.f_frsize


def _loader(
    dataset: Dataset,
    kind: str,
    batches: int,
    workers: int,
    method: str,
    *,
    persistent_workers: bool,
) -> NeighborLoader | LinkNeighborLoader:
    size = 64
    options: dict[str, Any] = {
        "batch_size": size,
        "shuffle": True,
        "seed": 0,
        "num_workers": workers,
        "multiprocessing_context": method,
        "persistent_workers": persistent_workers,
    }
    if kind == "links":
        ends = np.random.default_rng(1).integers(0, _NODES // 2, (2, size * batches))
        ends %= dataset.node_record("item").count
        return LinkNeighborLoader(dataset, [6, 4], (BUYS, ends), neg_sampling="binary", **options)
    seeds = np.arange(size * batches) % dataset.node_record("user").count
    return NeighborLoader(dataset, [6, 4], ("user", seeds), lookahead=2, **options)


def _epoch(loader: Any, batches: int) -> Any:
    """Go through an epoch, each batch within its time; the iterator, whose end ends workers."""
    held = iter(loader)
    found = 0
    for _ in _watched(held):
        found += 1
    if found != batches:
        raise SystemExit(f"{found} batches came where {batches} were to come")
    return held


def _watched(batches: Iterator[Any]) -> Iterator[Any]:
    while True:
        faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        batch = next(batches, None)
        faulthandler.cancel_dump_traceback_later()
        if batch is None:
            return
        yield batch


def _anonymous(held: Any) -> dict[int, int]:
    pids = [os.getpid(), *(worker.pid for worker in held.inner.inner._workers)]
    return {pid: process_memory(pid).anon_bytes for pid in pids}


def _growth(values: list[int]) -> int:
    warm = values[int(len(values) * _WARM_SHARE) :]
    return max(warm) - warm[0]


def _stop(loader: Any) -> None:
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None


def main(arguments: list[str] | None = None) -> int:
    """Run it all; 1 where something was not flat."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path.cwd())
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batches", type=int, default=10, help="an epoch")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--fresh", type=int, default=10, help="epochs with fresh workers")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    found = []
    with place_for(options.dir, 1 << 28) as place:
        dataset = build_shop(place / "shop")
        sizes = {"batches": options.batches, "workers": options.workers}
        for kind in ("nodes", "links"):
            found.append(endure_persistent(dataset, kind, epochs=options.epochs, **sizes))
            _tell(found[-1])
        for method in ("fork", "spawn"):
            found.append(endure_fresh(dataset, method, epochs=options.fresh, **sizes))
            _tell(found[-1])
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    return 0 if all(one.is_flat for one in found) else 1


def _tell(one: Endured) -> None:
    print(
        f"{one.name}: {one.epochs} epochs, {one.batches} batches; a process grew by "
        f"{format_bytes(max(one.grown_bytes, 0))} at most, /dev/shm by "
        f"{format_bytes(max(one.shm_bytes, 0))}: {'flat' if one.is_flat else 'NOT FLAT'}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
