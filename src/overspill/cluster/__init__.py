"""Several machines, on Ray: datasets in parts, each on its machine's disk.

Names are resolved on first use, so that a process which serves, or plans, does not import what
trains.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from overspill.errors import UnavailableError

try:
    import ray as _ray  # noqa: F401 - what is tried
except ImportError as error:
    raise UnavailableError(
        f"overspill.cluster works on Ray, which cannot be imported: {error}",
        remedy='pip install "overspill[ray]"',
    ) from error

if TYPE_CHECKING:  # for whoever checks a program's types: the same names, by their homes
    from overspill.cluster.building.build import build as build
    from overspill.cluster.building.build import finalise_build as finalise_build
    from overspill.cluster.building.build import init_build as init_build
    from overspill.cluster.building.build import partition_build as partition_build
    from overspill.cluster.dataset import ClusterDataset as ClusterDataset
    from overspill.cluster.dataset import open_dataset as open_dataset
    from overspill.cluster.planning.plan import Plan as Plan
    from overspill.cluster.planning.plan import plan as plan
    from overspill.cluster.planning.probe import measure_rates as measure_rates
    from overspill.cluster.planning.rates import Rates as Rates
    from overspill.cluster.seed_split import places_of_rank as places_of_rank
    from overspill.cluster.seed_split import split_by_owner as split_by_owner

_HOMES = {
    "ClusterDataset": "dataset",
    "Plan": "planning.plan",
    "Rates": "planning.rates",
    "measure_rates": "planning.probe",
    "build": "building.build",
    "finalise_build": "building.build",
    "init_build": "building.build",
    "open_dataset": "dataset",
    "partition_build": "building.build",
    "plan": "planning.plan",
    "places_of_rank": "seed_split",
    "split_by_owner": "seed_split",
}

__all__ = [*_HOMES]


if not TYPE_CHECKING:  # by which every misspelt name would have a type

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'overspill.cluster' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"overspill.cluster.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
