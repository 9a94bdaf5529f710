"""Negative samples as a function of a batch's key, through PyTorch Geometric's own edge sampling.

PyG draws them from torch's one generator, so that they would depend on the number of workers and
change what the caller draws next. Here they come from a generator of the batch's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch_geometric.sampler import NegativeSampling

from overspill.errors import InputError
from overspill.graph.dataset import Dataset, EdgeType
from overspill.pyg.seeds import digest_of
from overspill.tensors.preshared import allocate_preshared

_MODES = ("binary", "triplet")
_NODES_A_PIECE = 1 << 18


class CumulativeWeights:
    """Weights of nodes to draw from in the time of a bisection, for any number of nodes.

    `torch.multinomial` stops at 2**24 of them. 8 bytes a node, placed as `allocate_preshared` does,
    so that workers share it.

    Args:
        weights: (nodes,), 0 or more, not all 0.
        count: Nodes there are.
        name: What the caller calls them.

    Raises:
        InputError: Another length, a weight below 0 or not finite, or none above 0.
    """

    def __init__(self, weights: torch.Tensor, count: int, name: str) -> None:
        if weights.shape != (count,):
            raise InputError(
                f"{name} has shape {tuple(weights.shape)} for {count} nodes",
                remedy="give one weight a node of that end's type",
            )
        if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
            raise InputError(
                f"{name} holds a weight that is negative or not finite",
                remedy="give weights of 0 and above",
            )
        self._sums = allocate_preshared((count,), torch.float64)
        torch.cumsum(weights.to(torch.float64), 0, out=self._sums)
        self._total = float(self._sums[-1]) if count else 0.0
        if self._total <= 0:
            raise InputError(f"{name} has no weight above 0", remedy="give one node a weight")
        # Rounding may lift a draw to the total itself, which belongs to no node.
        self._last = int(torch.searchsorted(self._sums, self._total))

    def digest(self) -> str:
        """A hash of the weights' sums."""
        return digest_of(self._sums.numpy())

    def draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Draw nodes with replacement: int64 (count,)."""
        at = torch.rand(count, dtype=torch.float64, generator=generator) * self._total
        return torch.searchsorted(self._sums, at, right=True).clamp_(max=self._last)


class KeyedNegatives(NegativeSampling):  # type: ignore[misc] # PyG has no types
    """PyG's negative sampling, drawn from a generator of its own.

    Args:
        mode: "binary" or "triplet".
        amount: Negatives a positive.
        weights: By end, "src" and "dst"; an end that is missing is drawn uniformly.
    """

    def __init__(
        self, mode: str, amount: float, weights: Mapping[str, CumulativeWeights] | None = None
    ) -> None:
        super().__init__(mode, amount)
        self._weights = dict(weights or {})
        self._generator = torch.Generator(device="cpu")

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyedNegatives, (self.mode.value, self.amount, self._weights)

    def keyed(self, key: np.uint64) -> KeyedNegatives:
        """The same sampling, its stream begun at a key; for one thread."""
        held = KeyedNegatives(self.mode.value, self.amount, self._weights)
        held._generator.manual_seed(int(np.int64(key.view(np.int64))))
        return held

    def digest(self) -> str:
        """What tells these negatives from others."""
        weights = {end: held.digest() for end, held in sorted(self._weights.items())}
        return f"{self.mode.value} {self.amount} {weights}"

    def draws(self, positives: int) -> int:
        """Nodes of one end that are drawn for a number of links."""
        # As many as with times, which PyG rounds up for each link.
        return int(math.ceil(self.amount) * positives)

    def sample(
        self, num_samples: int, endpoint: Literal["src", "dst"], num_nodes: int | None = None
    ) -> torch.Tensor:
        """Draw nodes of one end: int64 (num_samples,)."""
        weights = self._weights.get(endpoint)
        if weights is not None:
            return weights.draw(num_samples, self._generator)
        return torch.randint(num_nodes or 0, (num_samples,), generator=self._generator)


class NodeTimes:
    """The times of a node type, read from the dataset where PyG asks for a few of them.

    Args:
        dataset: The dataset.
        name: The node array.
        type: The node type.
    """

    def __init__(self, dataset: Dataset, name: str, type: str) -> None:
        self._dataset, self._name, self._type = dataset, name, type

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeTimes, (self._dataset, self._name, self._type)

    def __getitem__(self, ids: torch.Tensor) -> torch.Tensor:
        found = self._dataset.gather(self._name, ids.reshape(-1), self._type)
        return found.view(ids.shape)

    def argmin(self) -> torch.Tensor:
        """The earliest node; the first call reads the whole array."""
        return self._earliest

    @cached_property
    def _earliest(self) -> torch.Tensor:
        if self._dataset.is_mapped:
            return self._dataset.features(self._name, self._type).argmin()
        return self._earliest_by_pieces()

    def _earliest_by_pieces(self) -> torch.Tensor:
        count, found = self._dataset.node_record(self._type).count, []
        for start in range(0, count, _NODES_A_PIECE):
            ids = torch.arange(start, min(start + _NODES_A_PIECE, count), device="cpu")
            times = self[ids]
            place = times.argmin()
            found.append((int(times[place]), start + int(place)))
        return torch.tensor(min(found)[1], device="cpu")


def chosen_negatives(
    dataset: Dataset, edge_type: EdgeType, wanted: Any, ratio: float | None
) -> KeyedNegatives | None:
    """What a loader was asked for as `neg_sampling` or `neg_sampling_ratio`.

    Args:
        dataset: The dataset.
        edge_type: The type of the links.
        wanted: A mode, PyG's `NegativeSampling`, a dictionary or tuple of its arguments, or None.
        ratio: Negatives a positive, as PyG's older argument says; None and 0 for none.

    Raises:
        InputError: No such mode or amount, or weights that do not fit.
    """
    if ratio:
        if wanted is not None:
            raise InputError(
                "neg_sampling and neg_sampling_ratio exclude each other",
                remedy="leave the ratio out, and give it as the amount of neg_sampling",
            )
        wanted = ("binary", ratio)
    if wanted is None:
        return None
    given = _cast(wanted)
    if type(given) not in (NegativeSampling, KeyedNegatives):
        raise InputError(
            f"neg_sampling is a {type(given).__name__}, whose draws would follow no seed",
            remedy='pass "binary", "triplet" or a NegativeSampling of PyG itself',
        )
    weights = {}
    for end, held, type_ in (
        ("src", given.src_weight, edge_type[0]),
        ("dst", given.dst_weight, edge_type[2]),
    ):
        count = dataset.node_record(type_).count
        if held is not None:
            weights[end] = CumulativeWeights(held.detach().cpu(), count, f"{end}_weight")
    return KeyedNegatives(given.mode.value, given.amount, weights)


def _cast(wanted: Any) -> NegativeSampling:
    try:
        given = NegativeSampling.cast(wanted)
        if not isinstance(given, NegativeSampling):
            raise TypeError(f"a {type(wanted).__name__}")
        if not math.isfinite(given.amount):
            raise ValueError(f"the amount {given.amount} is not finite")
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(
            f"neg_sampling={wanted!r} cannot be understood: {error}",
            value=str(wanted)[:80],
            remedy=f"one of {', '.join(map(repr, _MODES))}, with an amount above 0, a whole "
            'number for "triplet"',
        ) from error
    return given
