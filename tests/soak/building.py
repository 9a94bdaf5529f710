"""Actions on datasets in the making: builds, taken up again or not, and partitions."""

from __future__ import annotations

from pathlib import Path
from random import Random

import overspill as ov
from overspill.cli.holdings import is_partition
from soak.inputs import PARTITIONS, recipes
from soak.stage import Stage

_LIMITS_MIB = (256, 288, 352)


def build(stage: Stage, chance: Random, *, out: str, recipe: str, resume: bool) -> dict[str, int]:
    """Build into a directory that is absent or holds an unfinished build of the same recipe."""
    dataset = ov.build_dataset(
        stage.data / out,
        memory_limit=chance.choice(_LIMITS_MIB) << 20,
        threads=chance.choice([None, 1, 2]),
        resume=resume,
        **recipes(stage.inputs)[recipe],
    )
    return {"bytes built": bytes_of(dataset.path)}


def partition(stage: Stage, chance: Random, *, out: str, recipe: str) -> dict[str, int]:
    """Cut a dataset that is always there into parts."""
    source, method, parts = PARTITIONS[recipe]
    limit = chance.choice([None, 128 << 20])
    ov.partition_dataset(
        home(stage, source), parts, out=stage.data / out, method=method, memory_limit=limit
    )
    assert is_partition(stage.data / out)
    return {"bytes built": bytes_of(stage.data / out)}


def home(stage: Stage, recipe: str) -> Path:
    """The dataset of a recipe that was built in peace and stays."""
    return stage.data / f"home-{recipe}"


def bytes_of(directory: str | Path) -> int:
    """The bytes of all files below a directory."""
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())
