"""What the page of several machines shows, its training with Ray Train included, on two nodes.

One cluster for the whole file; every block of the page is run there, in the page's order.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]

SCRIPT = """
import os, sys, tempfile
from pathlib import Path
from clusters import LocalCluster, report

tests, place = map(Path, sys.argv[1:])
sys.path.insert(0, str(tests / "docs"))
from page_blocks import ON_CLUSTER, blocks_of
from page_running import Runner

env = {
    "HOME": str(place),
    "TMPDIR": str(place),
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process more
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
with LocalCluster(2, connect=False) as cluster:
    runner = Runner({"RAY_ADDRESS": cluster.address, **env})
    (page,) = ON_CLUSTER
    printed = runner.run(page, blocks_of(page), place / "page")
    runner.close()
report(printed=printed, left=sorted(path.name for path in (place / "page" / "work").iterdir()),
       home=sorted(path.name for path in place.iterdir()))
"""


@pytest.fixture(scope="module")
def found(
    on_cluster: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("home")
    (place / "page").mkdir()
    told = on_cluster(SCRIPT, arguments=[TESTS, place], timeout_s=500)
    shutil.rmtree(place)
    return told


def test_ray_train_learns_on_two_machines(found: dict[str, Any]) -> None:
    """The loss after each epoch falls to a fraction of that of guessing, ln 7."""
    losses = [float(one) for one in re.findall(r"\d+\.\d+", found["printed"][-1])]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 2.0 and losses[-1] < 0.4


def test_the_page_leaves_its_dataset_alone(found: dict[str, Any]) -> None:
    assert found["left"] == ["cora-parts", "src", "train_on_ray.py"]
    # torch makes one of these wherever it is imported.
    assert set(found["home"]) <= {"page", "torchinductor_root"}
