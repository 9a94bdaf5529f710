from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confined import PythonResult
from typed_graphs import shop

WARMED = """
import sys

import numpy as np

from overspill.graph.dataset import open_dataset
from overspill.graph.sampling import SamplingSpec, candidates, fan_outs_for
from overspill.graph.sampling.warm import warm_sampling
from overspill.graph.warm import warm_reading
from overspill.kernels import jit

dataset = open_dataset(sys.argv[1])
warm_reading()
# From one that needs little to those that need more.
for options in (
    {},
    {"replace": True, "edge_places": True},
    {"disjoint": True},
    {"induced": True},
    {"induced": True, "disjoint": True},
    {"weight": "w"},
    {"weight": "w", "replace": True},
    {"time": "t"},
    {"time": "t", "replace": True, "edge_places": True},
    {"time": "t", "temporal_strategy": "last", "replace": True},
    {"time": "t", "weight": "w", "induced": True},
):
    spec = SamplingSpec(num_neighbors=fan_outs_for(dataset, [3, 2]), **options)
    warm_sampling(dataset, spec)
    before = {kernel: len(kernel.signatures) for kernel in jit._kernels}
    for most in (1 << 18, 2):  # hubs have kernels of their own
        candidates.MOST_EDGES = most
        times = np.full(20, 30) if spec.time else None
        sampler = dataset.sampler(spec)
        sampled = sampler.sample({"item": np.arange(20)}, key=np.uint64(1), seed_times=times)
    late = [k.__name__ for k, count in before.items() if len(k.signatures) > count]
    assert not late, (options, late)
"""


def test_nothing_is_compiled_while_sampling_once_it_was_warmed(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    shop(tmp_path / "shop")
    run_python(WARMED, arguments=[tmp_path / "shop"]).check()
