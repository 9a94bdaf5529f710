"""Part 2 of the demo: a graph several times the memory limit, in a process of its own.

Run as ``python -m overspill.cli.demo.large SPEC``, inside whatever limits the process that starts
it. Speaks to that process in JSON lines on standard output: progress, then one result or error.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from overspill.build import describe_build, run_build
from overspill.cli.demo.generate import CLASSES, DIMENSIONS, generate_graph
from overspill.cli.demo.training import GraphSage, Tally, test, train
from overspill.errors import OverspillError
from overspill.graph import Dataset, open_dataset
from overspill.pyg import NeighborLoader
from overspill.recording.loader_counts import LOADERS

FAN_OUTS = [10, 5]
BATCH_SIZE = 512
_SEED = 0
_LEARNING_RATE = 0.003


@dataclass(frozen=True)
class LargeSpec:
    """What part 2 is asked to do.

    Attributes:
        directory: An existing directory for the input and the dataset.
        num_nodes: Nodes to generate.
        memory_limit_bytes: What the build and the loader plan with.
        train_batches: Batches of one training pass.
        test_batches: Batches of the test.
        workers: Loader workers.
    """

    directory: str
    num_nodes: int
    memory_limit_bytes: int
    train_batches: int
    test_batches: int
    workers: int


@dataclass(frozen=True)
class LargeResult:
    """What part 2 came to; seconds are of wall time."""

    nodes: int
    edges: int
    build_seconds: float
    topology_seconds: float
    train_seconds: float
    train_rows: int
    accuracy: float

    @property
    def edges_per_second(self) -> float:
        """Rate at which the edges became rows: both passes, the copy of features left out."""
        return self.edges / self.topology_seconds

    @property
    def rows_per_second(self) -> float:
        """Feature rows gathered while training."""
        return self.train_rows / self.train_seconds


def run_large(spec: LargeSpec) -> LargeResult:
    """Generate, build, train and test; reports progress as it goes."""
    directory = Path(spec.directory)
    inputs = directory / "input"
    inputs.mkdir(exist_ok=True)
    paths = generate_graph(inputs, spec.num_nodes, seed=_SEED, report=_report)
    wanted = describe_build(
        directory / "dataset",
        edges=paths["edges"],
        node_features={"x": paths["x"], "y": paths["y"]},
        memory_limit=spec.memory_limit_bytes,
    )
    started = time.monotonic()
    phases = run_build(wanted, on_event=_report_build)["phase_seconds"]
    build_seconds = time.monotonic() - started
    dataset = open_dataset(directory / "dataset")
    model, tally, train_seconds = _train(dataset, spec)
    accuracy = _test(dataset, spec, model)
    return LargeResult(
        dataset.num_nodes,
        dataset.num_edges,
        build_seconds,
        phases["partition"] + phases["build rows"],
        train_seconds,
        tally.rows,
        accuracy,
    )


def _train(dataset: Dataset, spec: LargeSpec) -> tuple[GraphSage, Tally, float]:
    torch.manual_seed(_SEED)
    model = GraphSage(DIMENSIONS, 64, CLASSES, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    train_ids, _ = _split(spec)
    loader = _loader(dataset, spec, train_ids)
    started = time.monotonic()

    def report(tally: Tally) -> None:
        _report("train", tally.batches, len(loader), "batches")
        _report_loaded()

    tally = train(model, optimizer, loader, report=report)
    return model, tally, time.monotonic() - started


def _test(dataset: Dataset, spec: LargeSpec, model: GraphSage) -> float:
    _, test_ids = _split(spec)
    loader = _loader(dataset, spec, test_ids)

    def report(tally: Tally) -> None:
        _report("test", tally.batches, len(loader), "batches")
        _report_loaded()

    return test(model, loader, report=report).accuracy


def _loader(dataset: Dataset, spec: LargeSpec, ids: torch.Tensor) -> NeighborLoader:
    return NeighborLoader(
        dataset,
        FAN_OUTS,
        batch_size=BATCH_SIZE,
        input_nodes=ids,
        num_workers=spec.workers,
        memory_limit=spec.memory_limit_bytes,
        seed=_SEED,
    )


def _split(spec: LargeSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Disjoint training and test seeds, spread over all nodes."""
    wanted = (spec.train_batches + spec.test_batches) * BATCH_SIZE
    random = torch.Generator().manual_seed(_SEED)
    drawn = torch.randint(spec.num_nodes, (2 * wanted,), generator=random)
    chosen = torch.from_numpy(np.unique(drawn.numpy()))
    chosen = chosen[torch.randperm(len(chosen), generator=random)]
    testing = min(spec.test_batches * BATCH_SIZE, len(chosen) // 4)
    return chosen[testing : testing + spec.train_batches * BATCH_SIZE], chosen[:testing]


def _report(phase: str, done: int, total: int, unit: str) -> None:
    _say("progress", {"phase": phase, "done": done, "total": total, "unit": unit})


def _report_loaded() -> None:
    _say("loaded", LOADERS.totals()._asdict())


def _report_build(event: dict[str, Any]) -> None:
    if event["event"] == "progress":
        _report(f"build: {event['phase']}", event["done"], event["total"], event["unit"])


def _say(kind: str, held: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": kind, **held}, allow_nan=False) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Read the spec from the first argument, run it, and say how it ended."""
    try:
        result = run_large(LargeSpec(**json.loads(sys.argv[1])))
    except OverspillError as error:
        remedy, error.remedy = error.remedy, None  # part 1 tells it, beside what failed
        _say("error", {"message": str(error), "remedy": remedy})
        return 1
    _say("result", asdict(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
