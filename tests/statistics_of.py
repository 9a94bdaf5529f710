"""Chi-square tests of picks, that a biased sampler fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from math import prod

import numpy as np
from scipy import stats

Subset = tuple[int, ...]


def successive_draws(weights: Sequence[float], count: int) -> dict[Subset, float]:
    """The probability of each subset when so many are drawn, one after the other, by weight."""
    total = sum(weights)

    def chance(order: Subset) -> float:
        left = [total - sum(weights[j] for j in order[:i]) for i in range(count)]
        return prod(weights[j] / rest for j, rest in zip(order, left, strict=True))

    usable = [i for i, weight in enumerate(weights) if weight > 0]
    return {
        subset: sum(chance(order) for order in permutations(subset))
        for subset in combinations(usable, count)
    }


def subset_p_value(picks: np.ndarray, expected: Mapping[Subset, float]) -> float:
    """How likely draws, a row each, are under probabilities of subsets; 0 for an impossible one."""
    kinds, counts = np.unique(np.sort(picks, axis=1), axis=0, return_counts=True)
    seen = dict(zip(map(tuple, kinds.tolist()), counts.tolist(), strict=True))
    if not seen.keys() <= expected.keys():
        return 0.0
    observed = [seen.get(subset, 0) for subset in expected]
    wanted = np.array(list(expected.values())) * len(picks)
    return float(stats.chisquare(observed, wanted).pvalue)


def single_p_value(picks: np.ndarray, weights: Sequence[float]) -> float:
    """How likely independent draws are under weights; 0 for one of weight 0."""
    held = np.asarray(weights, np.float64)
    seen = np.bincount(picks.ravel(), minlength=len(held))
    if seen[held == 0].any():
        return 0.0
    wanted = held[held > 0] / held.sum() * picks.size
    return float(stats.chisquare(seen[held > 0], wanted).pvalue)


def inclusion_p_value(picks: np.ndarray, population: int) -> float:
    """How likely subsets of one size, a row each, are where all are equally likely."""
    draws, size = picks.shape
    expected = draws * size / population
    seen = np.bincount(picks.ravel(), minlength=population)
    # Counts of subsets vary less than a multinomial's: scaled, the statistic is chi-square.
    variance = expected * (1 - size / population)
    spread = ((seen - expected) ** 2).sum() / variance * (population - 1) / population
    return float(stats.chi2.sf(spread, population - 1))
