"""Makes one batch, in whichever process: sample, gather, put together.

Bottleneck: the gather. A group of batches that are read together (look-ahead) is sampled at once,
and their rows are read once for all; each batch of the group is then put together from there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

import torch
from torch.utils.data import Dataset as MapDataset
from torch.utils.data import get_worker_info

from overspill.graph.dataset import Dataset
from overspill.graph.reading.array_keys import ArrayKey
from overspill.graph.reading.counters import LoaderCounters
from overspill.graph.reading.hot_rows import HotRows
from overspill.graph.reading.lookahead import ReadingBuffer
from overspill.graph.reading.packing import Pack
from overspill.graph.reading.row_reader import RowReader
from overspill.graph.sampling.spec import SampleLimit, SamplingSpec
from overspill.pyg.assembly import Assembly, Fill, hand_over
from overspill.pyg.groups import BatchGroup, GroupsInTurn
from overspill.pyg.order import Request
from overspill.pyg.packed import unpacked
from overspill.pyg.sampling import Allocate, GraphSampling, Output, plain_tensor
from overspill.pyg.tasks import Task
from overspill.tensors.batches import allocate_in_worker

Transform = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class BatchRecipe:
    """What every batch of a loader is made by; it pickles, the dataset by path.

    Attributes:
        dataset: The dataset.
        spec: What to sample.
        bidirectional: Whether edges are made to go both ways.
        task: What batches are made for.
        keys: The arrays to gather.
        seed: Seed of the loader.
        transform: Applied to each batch where it is made, or None.
        transform_output: Applied to what was sampled, before rows are gathered, or None.
        limit: The largest neighbourhood planned for.
        hot: Rows held in memory, or None.
        counters: Where batches and rows are counted, or None.
        read_together: Memory for the rows of a group of batches, by array.
        groups: Groups that a process holds: 2, one read while the other is used; 1, in turn.
        pack: Where the batches are read from instead, or None.
    """

    dataset: Dataset
    spec: SamplingSpec
    bidirectional: bool
    task: Task
    keys: tuple[ArrayKey, ...]
    seed: int
    transform: Transform | None = None
    transform_output: Transform | None = None
    limit: SampleLimit | None = None
    hot: HotRows | None = None
    counters: LoaderCounters | None = None
    read_together: Mapping[ArrayKey, int] = field(default_factory=dict)
    groups: int = 1
    pack: Pack | None = None

    def sample(self, request: Request, sampling: GraphSampling, new: Allocate) -> Output:
        """Sample the batch of a request, its edges and output as they are asked for."""
        out = self.task.sample(request, sampling, seed=self.seed, new=new)
        if self.bidirectional:
            out = out.to_bidirectional()
        return out if self.transform_output is None else self.transform_output(out)


class BatchMaker(MapDataset[Any]):
    """The DataLoader's dataset: a request in, a batch out.

    What it reads with is made in the process that first asks, and stays there; threads that ask at
    the same time take turns, since they share buffers and counts. A forked child begins anew.

    Args:
        recipe: How batches are made.
        num_inputs: Inputs of an epoch, for ``len(loader.dataset)``.

    Attributes:
        recipe: How batches are made.
        beginning: Held while a pass over the loader begins.
    """

    def __init__(self, recipe: BatchRecipe, num_inputs: int) -> None:
        self.recipe = recipe
        self._num_inputs = num_inputs
        self.begin_anew()
        _MAKERS.add(self)

    def begin_anew(self) -> None:
        """Let go of what another process made batches with, and of locks that its threads held."""
        self._bench: _Bench | None = None
        self._turn, self.beginning = threading.Lock(), threading.RLock()

    def read_from(self, pack: Pack) -> None:
        """Read the batches of every pass from a pack, from now on."""
        with self._turn:
            self.recipe, self._bench = replace(self.recipe, pack=pack), None

    def __len__(self) -> int:
        return self._num_inputs

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchMaker, (self.recipe, self._num_inputs)

    def __getitem__(self, request: Request) -> Any:
        return self.__getitems__(request)

    def __getitems__(self, request: Request) -> Any:
        """Make the batch that a request describes.

        Raises:
            StaleFileError: A file of the dataset was cut, replaced or removed.
            MappingError: The disk refused to read.
            NoRoomError: The batch outgrew the plan, or does not fit in /dev/shm.
        """
        with self._turn:
            if self._bench is None:
                self._bench = _Bench(self.recipe)
            with torch.device("cpu"):  # whatever the caller's default is, in PyG's code too
                batch = self._bench.make(request)
        transform = self.recipe.transform
        return batch if transform is None else transform(batch)


_MAKERS: WeakSet[BatchMaker] = WeakSet()


def _begin_anew_in_child() -> None:
    # A worker has a slot of its own to count in.
    for maker in list(_MAKERS):
        maker.begin_anew()


os.register_at_fork(after_in_child=_begin_anew_in_child)


class _Side:
    """What a group of batches is made with. One thread at a time."""

    def __init__(self, recipe: BatchRecipe, sampling: GraphSampling | None = None) -> None:
        self._recipe = recipe
        self._sampling = sampling or GraphSampling(recipe.dataset, recipe.spec, recipe.limit)
        self._buffers: dict[ArrayKey, ReadingBuffer] | None = None

    def group(self, requests: Sequence[Request], reader: RowReader) -> BatchGroup:
        if self._buffers is None:
            self._buffers = {
                key: ReadingBuffer(reader, key, nbytes)
                for key, nbytes in self._recipe.read_together.items()
            }
        with torch.device("cpu"):  # a thread has a default of its own
            outs = [self._recipe.sample(held, self._sampling, plain_tensor) for held in requests]
        return BatchGroup(requests, outs, reader, self._buffers)


class _Bench:
    """What one process makes batches with. One thread at a time."""

    def __init__(self, recipe: BatchRecipe) -> None:
        self._recipe = recipe
        self._sampling = GraphSampling(recipe.dataset, recipe.spec, recipe.limit)
        self._assembly = Assembly(recipe.dataset, recipe.keys)
        worker = get_worker_info()
        place = 0 if worker is None else worker.id + 1
        slot = None if recipe.counters is None else recipe.counters.slot(place)
        self._reader = RowReader(recipe.dataset, recipe.hot, counts=slot)
        self._sides = [_Side(recipe, self._sampling)]
        self._turns: GroupsInTurn | None = None
        if recipe.groups > 1:
            self._sides.append(_Side(recipe))
            self._turns = GroupsInTurn(self._made)
        self._group: BatchGroup | None = None

    def make(self, request: Request) -> Any:
        self._reader.check_unchanged()
        if request.group:
            self._begin(request)
        out, fill = self._sampled(request)
        batch = self._assembly.assemble(out, fill)
        self._recipe.task.describe(batch, out, hand_over)
        self._reader.counts.add_batch()
        return batch

    def _begin(self, request: Request) -> None:
        self._group = None  # its memory goes before the next one's comes
        self._group = self._turns.begin(request) if self._turns else self._made(request.group, 0)

    def _made(self, requests: Sequence[Request], side: int) -> BatchGroup:
        return self._sides[side].group(requests, self._reader)

    def _sampled(self, request: Request) -> tuple[Output, Fill]:
        if self._recipe.pack is not None and request.packed:
            return self._unpacked(self._recipe.pack, request.index)
        if self._group is not None:
            taken = self._group.take(request)
            if taken is not None:
                if not self._group.left:
                    self._group = None
                return taken
        if self._turns is not None:
            self._turns.settle()
        return self._recipe.sample(request, self._sampling, allocate_in_worker), self._gather

    def _unpacked(self, pack: Pack, index: int) -> tuple[Output, Fill]:
        out = unpacked(pack, index, self._recipe.dataset, allocate_in_worker)

        def fill(key: ArrayKey, _ids: torch.Tensor, rows: torch.Tensor) -> None:
            pack.read_rows(index, key, rows)
            self._reader.count_rows(key, len(rows))

        return out, fill

    def _gather(self, key: ArrayKey, ids: torch.Tensor, out: torch.Tensor) -> None:
        self._reader.gather(key, ids, out=out)
