"""The arguments that both loaders take beside those of sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch.utils.data import Sampler

from overspill.errors import InputError
from overspill.graph.reading.hot_rows import HotRows
from overspill.pyg.arrays import Names
from overspill.pyg.batches import Transform


class LoaderArguments(TypedDict, total=False):
    """Arguments of both loaders beside those of sampling: theirs, then torch's DataLoader's."""

    batch_size: int
    shuffle: bool | None
    sampler: Sampler[int] | None
    drop_last: bool
    num_workers: int
    features: Names
    edge_features: Names
    memory_limit: str | int | None
    seed: int | None
    hot_rows: str | int | HotRows | None
    lookahead: int
    pack: str | Path | None
    prefetch_batches: int | None
    transform: Transform | None
    transform_sampler_output: Transform | None
    prefetch_factor: int | None
    pin_memory: bool
    pin_memory_device: str
    persistent_workers: bool
    multiprocessing_context: Any
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    generator: torch.Generator | None
    in_order: bool
    is_sorted: bool
    filter_per_worker: bool | None
    directed: bool
    neighbor_sampler: Any
    custom_cls: Any


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The arguments that torch's DataLoader does not get; see `NeighborLoader`."""

    batch_size: int = 1
    shuffle: bool | None = False
    sampler: Sampler[int] | None = None
    drop_last: bool = False
    features: Names = None
    edge_features: Names = None
    memory_limit: str | int | None = None
    seed: int | None = None
    hot_rows: str | int | HotRows | None = None
    lookahead: int = 0
    pack: str | Path | None = None
    prefetch_batches: int | None = None
    prefetch_factor: int | None = None
    transform: Transform | None = None
    transform_sampler_output: Transform | None = None

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> LoaderOptions:
        """Take them out of all arguments."""
        names = [field.name for field in fields(cls) if field.name in arguments]
        return cls(**{name: arguments.pop(name) for name in names})

    def require_meaning(self) -> None:
        """Refuse options that exclude each other, and what cannot be called (InputError)."""
        for name in ("transform", "transform_sampler_output"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InputError(
                    f"{name}={value!r} cannot be called", remedy="give a function of a batch"
                )
        if self.pack is not None and self.sampler is not None:
            raise InputError(
                "a pack holds a fixed set of batches, and a sampler may draw others",
                remedy="order the inputs by shuffle, or leave pack out",
            )
