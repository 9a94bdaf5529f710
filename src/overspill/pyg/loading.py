"""What the loaders have in common: order, plan, workers or a thread, and what they count."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from overspill.errors import InputError
from overspill.graph.dataset import Dataset
from overspill.graph.node_ids import require_within, whole_ids
from overspill.graph.reading.array_keys import Owner
from overspill.graph.reading.counters import LoaderCounters, LoaderStats
from overspill.graph.reading.hot_rows import HotRows
from overspill.graph.reading.lookahead import warm_lookahead
from overspill.graph.sampling.spec import SampleLimit
from overspill.graph.sampling.warm import warm_sampling
from overspill.graph.streams import stream_key
from overspill.graph.warm import warm_reading
from overspill.placement.loader import LoaderDemand, LoaderPlan, LoaderRoom
from overspill.pyg.ahead import BatchesAhead
from overspill.pyg.arguments import (
    chosen_context,
    chosen_lookahead,
    chosen_order,
    chosen_prefetch,
    chosen_seed,
    require_counts,
    require_number,
    start_method,
    take_habits,
)
from overspill.pyg.arrays import chosen_arrays
from overspill.pyg.batches import BatchMaker, BatchRecipe
from overspill.pyg.groups import rows_of
from overspill.pyg.killed_workers import WorkerBatches
from overspill.pyg.loader_options import LoaderArguments, LoaderOptions
from overspill.pyg.options import SamplingOptions
from overspill.pyg.order import InputBatches, Inputs, Request
from overspill.pyg.packed import PackPlace, pack_recipe, packed_seed
from overspill.pyg.projection import (
    demand_of,
    is_unbounded,
    measure_room,
    plan_within,
    probe_batches,
    report_plan,
    shares_of,
    some_places,
)
from overspill.pyg.sampling import GraphSampling, is_hetero, plain_tensor
from overspill.pyg.tasks import Task
from overspill.pyg.waiting import TimedBatches
from overspill.settings import size_bytes

_NO_EPOCH = -1  # whose streams are those of no pass


class SampledLoader(DataLoader[Any]):
    """A loader of sampled batches: `NeighborLoader` and `LinkNeighborLoader` say what they are of.

    Args:
        dataset: The dataset, already held to be one.
        inputs: What batches are made for.
        task: How a batch of them is sampled and described.
        sampling: What is sampled.
        **arguments: See `NeighborLoader`.

    Attributes:
        data: The dataset.
        plan: The memory plan; ``plan.prefetch_factor`` is the one in force.
        seed: The seed in force.
    """

    def __init__(
        self,
        dataset: Dataset,
        inputs: Inputs,
        task: Task,
        sampling: SamplingOptions,
        /,
        **arguments: Unpack[LoaderArguments],
    ) -> None:
        kwargs: dict[str, Any] = dict(arguments)
        take_habits(kwargs, type(self).__name__)
        own = LoaderOptions.taken_from(kwargs)
        own.require_meaning()
        workers = kwargs.pop("num_workers", 0)
        require_counts(workers, own.prefetch_factor)
        context = chosen_context(kwargs.pop("multiprocessing_context", None), dataset, workers)
        self.data = dataset
        self.seed = _seed(own)
        self._epoch = 0
        recipe = _recipe(dataset, task, sampling, own, self.seed)
        self._batches = _batches(inputs, own, self.seed)
        self._batches.workers = max(workers, 1)
        self._pack = _pack(recipe, sampling, own, inputs)
        # Before memory is measured: the compiler's own memory then counts as in use.
        _warm(recipe, self._batches.lookahead)
        self._counters = LoaderCounters(workers + 1)
        hot = _hot_rows(recipe, own.hot_rows, shared=workers > 0)
        recipe = replace(recipe, hot=hot, counters=self._counters)
        processes = {
            "workers": workers,
            "spawned": start_method(context) != "fork",
            "prefetch_factor": chosen_prefetch(own.prefetch_batches, own.prefetch_factor, workers),
            "pinned": bool(kwargs.get("pin_memory")),
            "packs": self._pack is not None,
        }
        demand = _demand(recipe, self._batches, processes)
        self.plan = _plan(recipe, self._batches, demand, own.memory_limit)
        if workers:
            kwargs["prefetch_factor"] = self.plan.prefetch_factor
        limit = SampleLimit(self.plan.nodes, self.plan.edges)
        together = shares_of(recipe, demand, self.plan.read_together_bytes)
        super().__init__(
            BatchMaker(
                replace(recipe, limit=limit, read_together=together, groups=self.plan.groups),
                len(inputs),
            ),
            batch_sampler=self._batches,  # type: ignore[arg-type] # requests, not lists of indices
            collate_fn=_as_made,
            num_workers=workers,
            multiprocessing_context=context,
            **kwargs,
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass over the loader the given epoch, for example after a restart."""
        self._epoch = epoch

    def stats(self) -> LoaderStats:
        """What this loader has read, hit and waited for so far, over all processes and epochs."""
        return self._counters.totals()

    def count_uses(self, batches: int | None = None) -> dict[Owner, torch.Tensor]:
        """How often each row would be gathered: a first pass, sampled here without rows.

        For `HotRows.chosen_by_counts`. Takes 4 bytes a node, and an edge where edge arrays are
        gathered.

        Args:
            batches: How many batches of the next epoch to sample; None for all.

        Returns:
            int32 (rows,), by node type, and by edge type where edge arrays are gathered.

        Raises:
            InputError: No such number of batches.
            StaleFileError: A file of the dataset was cut, replaced or removed.
            MappingError: The disk refused to read.
            NoRoomError: A batch outgrew the plan.
        """
        require_number("batches", batches)
        recipe = self._maker.recipe
        uses: dict[Owner, torch.Tensor] = {
            type: _zeros(recipe.dataset.node_record(type).count)
            for type in recipe.dataset.node_types
        }
        for type in {key[0] for key in recipe.keys} - uses.keys():
            count = recipe.dataset.edge_record(type).count  # type: ignore[arg-type] # no node type
            uses[type] = _zeros(count)
        for out in islice(self._sampled(self._epoch), batches):
            for owner, held in uses.items():
                ids = rows_of(out, owner)
                held.index_add_(0, ids, _zeros(ids.numel()) + 1)
        return uses

    def __call__(self, index: torch.Tensor | list[int]) -> Any:
        """Make the batch of some inputs by their places, here and of the dataset, not from a pack.

        The same places give the same batch, whatever the epoch.
        """
        places = whole_ids(index)
        require_within(places, len(self._batches.inputs), what="inputs")
        name = int(stream_key(places.size, *places.tolist()))
        return self._maker[self._batches.inputs.request(_NO_EPOCH, name, places)]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        with self._maker.beginning:
            self._batches.epoch = self._epoch
            self._epoch += 1
            if self._pack is not None and self._maker.recipe.pack is None:
                pack = self._pack.opened_or_made(self._sampled(0))
                self._maker.read_from(pack)
                # The maker and not this: an iterator may outlive its loader.
                weakref.finalize(self._maker, pack.close)
            inner: Iterator[Any] = super().__iter__()
            if self.num_workers:
                inner = WorkerBatches(inner)
            elif self.plan.prefetch_factor:
                inner = BatchesAhead(iter(self._batches), self._made, self.plan.prefetch_factor)
        return TimedBatches(inner, len(self._batches), self._counters.slot(0))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def _maker(self) -> BatchMaker:
        held = self.dataset
        assert isinstance(held, BatchMaker)
        return held

    @property
    def _made(self) -> Callable[[Request], Any]:
        make = self._maker.__getitems__
        if not (self.pin_memory and torch.accelerator.is_available()):
            return make
        return partial(_pinned, make, self.pin_memory_device or None)

    def _sampled(self, epoch: int) -> Iterator[Any]:
        """What is sampled for each batch of an epoch, without rows."""
        recipe = self._maker.recipe
        sampling = GraphSampling(recipe.dataset, recipe.spec, recipe.limit)
        for request in self._batches.requests(epoch):
            with torch.device("cpu"):
                out = recipe.sample(request, sampling, plain_tensor)
            yield out


def _demand(
    recipe: BatchRecipe, batches: InputBatches, processes: Mapping[str, Any]
) -> LoaderDemand:
    return demand_of(
        recipe,
        batches.largest,
        distinct=batches.once and batches.inputs.distinct,
        lookahead=batches.lookahead,
        processes=processes,
    )


def _plan(
    recipe: BatchRecipe,
    batches: InputBatches,
    demand: LoaderDemand,
    memory_limit: str | int | None,
) -> LoaderPlan:
    room = measure_room(memory_limit)
    probes = _probes(recipe, batches, room) if is_unbounded(recipe) else ()
    plan = plan_within(demand, room, largest_batch=probes)
    report_plan(plan, wanted_prefetch=demand.prefetch_factor)
    return plan


def _probes(
    recipe: BatchRecipe, batches: InputBatches, room: LoaderRoom
) -> Iterable[tuple[int, int]]:
    places = some_places(len(batches.inputs), batches.batch_size)
    requests = (batches.inputs.request(0, index, held) for index, held in enumerate(places))
    return probe_batches(recipe, requests, room)


def _hot_rows(recipe: BatchRecipe, wanted: Any, *, shared: bool) -> HotRows | None:
    if wanted is None or isinstance(wanted, HotRows):
        return wanted
    keys = [key for key in recipe.keys if isinstance(key[0], str)]
    budget = size_bytes("hot_rows", wanted)
    if not keys:
        return None
    return HotRows.chosen_by_degree(recipe.dataset, keys, budget, shared=shared)


def _recipe(
    dataset: Dataset, task: Task, sampling: SamplingOptions, own: LoaderOptions, seed: int
) -> BatchRecipe:
    return BatchRecipe(
        dataset=dataset,
        spec=sampling.spec(dataset),
        bidirectional=sampling.subgraph == "bidirectional",
        task=task,
        keys=chosen_arrays(dataset, own.features, own.edge_features),
        seed=seed,
        transform=own.transform,
        transform_output=own.transform_sampler_output,
    )


def _batches(inputs: Inputs, own: LoaderOptions, seed: int) -> InputBatches:
    batches = InputBatches(
        inputs,
        batch_size=own.batch_size,
        order=chosen_order(own.shuffle, own.sampler),
        drop_last=bool(own.drop_last),
        seed=seed,
        fixed=own.pack is not None,
    )
    lookahead = chosen_lookahead(own.lookahead)
    # A pack is in batch order already.
    batches.lookahead = 1 if own.pack is not None else lookahead
    return batches


def _pack(
    recipe: BatchRecipe, sampling: SamplingOptions, own: LoaderOptions, inputs: Inputs
) -> PackPlace | None:
    if own.pack is None:
        return None
    recipe.dataset.require_files("a pack is made by reading arrays in the order of their files")
    options = {
        "batch_size": own.batch_size,
        "shuffle": bool(own.shuffle),
        "drop_last": bool(own.drop_last),
        "inputs": inputs.digest(),
        "subgraph_type": sampling.subgraph,
        "spec": {name: str(value) for name, value in sorted(vars(recipe.spec).items())},
        "task": recipe.task.digest(),
    }
    if own.transform_sampler_output is not None:
        options["transform_sampler_output"] = _name(own.transform_sampler_output)
    if recipe.bidirectional and is_hetero(recipe.dataset):
        raise InputError(
            "a pack names rows of edges by their places, which edges that go both ways between "
            "types do not have",
            remedy='leave pack out, or take subgraph_type="directional"',
        )
    named = pack_recipe(recipe.dataset, recipe.keys, seed=recipe.seed, options=options)
    return PackPlace(Path(own.pack), recipe.dataset, named)


def _name(function: Any) -> str:
    """The name by which a function is found again: another of that name would be another file's."""
    module = str(getattr(function, "__module__", ""))
    name = getattr(function, "__qualname__", "")
    found = reduce(
        lambda held, part: getattr(held, part, None), name.split("."), sys.modules.get(module)
    )
    if found is not function:
        raise InputError(
            f"a pack is recognised by the name of its transform_sampler_output, and {function!r} "
            "has none of its own",
            remedy="give a function that a module defines at its top level, instead of a lambda, a "
            "partial or an object; or leave pack out",
        )
    return f"{module}.{name}"


def _warm(recipe: BatchRecipe, lookahead: int) -> None:
    dataset = recipe.dataset
    warm_reading()
    warm_sampling(dataset, recipe.spec)
    if lookahead > 1:
        warm_lookahead(dataset, recipe.keys)


def _zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device="cpu")


def _seed(own: LoaderOptions) -> int:
    if own.seed is not None:
        return chosen_seed(own.seed)
    held = None if own.pack is None else packed_seed(Path(own.pack))
    if held is not None:
        return held
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


def _pinned(make: Callable[[Request], Any], device: str | None, request: Request) -> Any:
    return pin_memory(make(request), device)  # type: ignore[no-untyped-call]


def _as_made(batch: Any) -> Any:
    return batch
