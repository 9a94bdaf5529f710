"""A partitioned build on machines that share no disk: the second node has mounts of its own.

It sees a small disk where the first sees a directory, under the same path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.requires("loop_device")

SCRIPT = '''
import os, shutil, subprocess, sys
from pathlib import Path
import numpy as np, ray
import overspill as ov
from clusters import LocalCluster, STORE_BYTES, report
from staged_builds import differences
from overspill import cluster
from overspill.errors import OverspillError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

base = Path(sys.argv[1])
here, given, seen, image = base / "here", base / "given", base / "seen", base / "disk.img"
for directory in (here, given, seen, base / "all"):
    directory.mkdir()
rng = np.random.default_rng(3)
edges = [rng.integers(0, 3000, (2, count)) for count in (40_000, 30_000, 9_000)]
np.save(here / "part-0.npy", edges[0])  # on the first machine alone
np.save(given / "part-1.npy", edges[1])  # on the second
np.save(base / "both.npy", edges[2])  # where both see it
np.save(given / "x.npy", rng.standard_normal((3000, 40)))
np.save(here / "y.npy", np.arange(3000))
np.save(here / "same.npy", edges[0])
np.save(given / "same.npy", edges[1])
np.save(base / "large.npy", rng.integers(0, 3000, (2, 3_000_000), dtype=np.int32))
image.touch()
os.truncate(image, 20 << 20)
subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
MOUNTED = 'mount -o loop "$1" "$2" && cp "$3"/* "$2" && shift 3 && exec "$@"'

def second(address):
    """A node with the disk where the first has a directory."""
    argv = ["unshare", "-m", "sh", "-c", MOUNTED, "sh", str(image), str(here), str(given)]
    argv += [str(Path(sys.executable).parent / "ray"), "start", "--address", address]
    argv += ["--node-ip-address", "127.0.0.3", "--num-cpus", "1", "--block"]
    argv += ["--object-store-memory", str(STORE_BYTES)]
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL)

def refused(**arguments):
    try:
        cluster.build(**{"num_parts": 2, **arguments})
    except OverspillError as error:
        return f"{type(error).__name__}: {error}"
    return "built"

@ray.remote(num_cpus=0)
def machine_there():
    return None

@ray.remote(num_cpus=0)
def copied(source, target):
    shutil.copytree(source, target, dirs_exist_ok=True)
    return sorted(str(path.relative_to(source)) for path in Path(source).iterdir())

with LocalCluster(1) as nodes:
    child = second(nodes.address)
    # It waits for the node, which alone has that.
    ray.get(machine_there.options(resources={"node:127.0.0.3": 0.001}).remote(), timeout=120)
    pattern = [str(here / "part-*.npy"), str(base / "both.npy")]
    features = {"x": str(here / "x.npy"), "y": str(here / "y.npy")}
    asked = {"num_parts": 3, "node_features": features, "edge_ids": True}
    built = cluster.build(edges=pattern, out=here / "out", **asked)
    there = NodeAffinitySchedulingStrategy(
        next(n["NodeID"] for n in ray.nodes() if n["NodeManagerAddress"] == "127.0.0.3"), soft=False
    )
    held = {
        "127.0.0.2": sorted(path.name for path in (here / "out").iterdir()),
        "127.0.0.3": ray.get(
            copied.options(scheduling_strategy=there).remote(str(here / "out"), str(base / "all"))
        ),
    }
    shutil.copytree(here / "out", base / "all", dirs_exist_ok=True)
    for number in (0, 1):
        shutil.copy((here, given)[number] / f"part-{number}.npy", seen)
    whole = [*sorted(str(path) for path in seen.glob("part-*.npy")), str(base / "both.npy")]
    shutil.copy(given / "x.npy", seen)
    asked["node_features"] = {"x": str(seen / "x.npy"), "y": str(here / "y.npy")}
    ov.partition_dataset(whole, out=base / "whole", **asked)
    report(
        built={
            "differences": differences(base / "all", base / "whole"),
            "machines": [part.machine for part in built.parts],
            "held": held,
        },
        two_files=refused(edges=str(here / "same.npy"), out=here / "two"),
        one_of_them=refused(edges=f"127.0.0.3:{here / 'same.npy'}", out=here / "one"),
        full=refused(edges=str(base / "large.npy"), num_nodes=3000, out=here / "full"),
        published=(here / "full" / "partition.json").exists(),
    )
    child.terminate()
    child.wait()
'''


@pytest.fixture(scope="module")
def found(
    on_cluster: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return on_cluster(SCRIPT, arguments=[str(tmp_path_factory.mktemp("disks"))])


def test_files_and_parts_are_where_their_machines_are(found: dict[str, Any]) -> None:
    built = found["built"]
    assert built["differences"] == []
    assert built["machines"] == ["127.0.0.2", "127.0.0.2", "127.0.0.3"]
    both = ["books", "partition.json"]
    assert built["held"] == {
        "127.0.0.2": [*both[:1], "part-00000", "part-00001", *both[1:]],
        "127.0.0.3": [*both[:1], "part-00002", *both[1:]],
    }


def test_two_files_under_one_path_are_told_apart(found: dict[str, Any]) -> None:
    assert "same.npy is another file on one machine" in found["two_files"]
    assert 'say which: "127.0.0.2:/' in found["two_files"]
    assert found["one_of_them"] == "built"


def test_a_full_disk_is_one_error_that_names_the_machine(found: dict[str, Any]) -> None:
    assert found["full"].startswith("DiskRefusedError: machine 127.0.0.3: ")
    assert "free space on this disk" in found["full"]
    assert not found["published"]
