"""A partitioned build on two nodes: parts equal to those of the whole, however it was interrupted.

One cluster for the file; each test looks at one finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

SCRIPT = '''
import json, os, shutil, signal, subprocess, sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import overspill as ov
from clusters import LocalCluster, report
from staged_builds import differences
from overspill import cluster
from overspill.build import Columns
from overspill.errors import OverspillError

place = Path(sys.argv[1])
rng = np.random.default_rng(7)

def edges_of(nodes, count, hub=None):
    ends = rng.integers(0, nodes, (2, count))
    if hub is not None:
        ends[1, rng.random(count) < 0.4] = hub
    return ends

def save(name, ends):
    """By its suffix."""
    path = str(place / name)
    if name.endswith(".npy"):
        np.save(path, ends)
    elif name.endswith(".csv"):
        np.savetxt(path, ends.T, fmt="%d", delimiter=",")
    else:
        weight = np.arange(ends.shape[1], dtype=np.float32)
        table = pa.table({"src": ends[0], "dst": ends[1], "w": weight})
        pq.write_table(table, path, row_group_size=500)
    return path

def same(name, num_parts, method="range", edges=None, **options):
    """Build in stages and at once; what differs."""
    out = place / name
    built = cluster.build(edges=edges, num_parts=num_parts, out=out, method=method, **options)
    whole = ov.partition_dataset(
        edges, num_parts, out=place / f"{name}-whole", method=method, **options
    )
    found = differences(out, place / f"{name}-whole")
    left = sorted(entry.name for entry in out.iterdir() if not entry.name.startswith("part-"))
    return {
        "differences": found,
        "edges": sum(part.edges for part in built.parts),
        "machines": sorted({part.machine for part in built.parts}),
        "left": left,
    }

tries = iter(range(100))

def refused(**arguments):
    try:
        cluster.build(**{"num_parts": 2, "out": place / f"refused-{next(tries)}", **arguments})
    except OverspillError as error:
        return f"{type(error).__name__}: {error}"
    return "built"

mixed = [
    save("a.npy", edges_of(900, 5000, hub=3)),
    save("b.parquet", edges_of(900, 3000)),
    save("none.npy", np.empty((2, 0), np.int64)),
    save("c.csv", edges_of(900, 700)),
    *(save(f"tiny-{n}.npy", edges_of(900, 5)) for n in range(10)),
]
total = 5000 + 3000 + 700 + 50
np.save(place / "x.npy", rng.standard_normal((900, 6)).astype(np.float32))
np.save(place / "y.npy", rng.integers(0, 9, 900).astype(">i4"))
np.save(place / "u.npy", rng.standard_normal((70, 2)))
np.save(place / "w.npy", rng.standard_normal((total, 3)))
features = {"x": str(place / "x.npy"), "y": str(place / "y.npy")}
text = str(place / "text.parquet")
pq.write_table(pa.table({"src": ["a", "b"], "dst": ["b", "c"]}), text)
tables = save("t0.parquet", edges_of(40, 900)), save("t1.parquet", edges_of(40, 20))

with LocalCluster(2) as nodes:
    report(
        range=same(
            "range", 2, edges=mixed, node_features=features, to_undirected=True,
            edge_features={"w": str(place / "w.npy")}, self_loops="drop",
        ),
        hash=same(
            "hash", 2, "hash", edges=mixed, num_nodes=900, node_features=features,
            layout=("csc", "csr"), duplicates="count", edge_ids=True,
        ),
        balanced=same("balanced", 3, "degree-balanced", edges=mixed[0]),
        many=same(
            "many", 3, edges=list(tables), num_nodes=40, edge_features={"w": Columns("w")},
            sort_within_row=False,
        ),
        typed=same(
            "typed", 4, "hash",
            edges={
                ("user", "buys", "item"): save("buys.npy", edges_of(50, 400)),
                ("item", "like", "shop"): save("like.csv", edges_of(2, 100)),
            },
            num_nodes={"user": 70, "item": 50, "shop": 2},
            node_features={"user": {"x": str(place / "u.npy")}, "item": {}, "shop": {}},
        ),
    )
    bad = edges_of(900, 100)
    bad[0, 60] = 900
    report(
        refusals={
            "out of range": refused(edges=save("bad.npy", bad), num_nodes=900),
            "missing": refused(edges=str(place / "no-*.npy")),
            "nobody": refused(edges=f"127.0.0.9:{mixed[0]}"),
            "memory": refused(edges=bad),
            "ids": refused(edges=mixed[0], ids="remap"),
            "order": refused(edges=mixed[0], order="degree"),
            "rows": refused(edges=mixed[0], num_nodes=800, node_features=features),
            "columns": refused(
                edges=mixed[0], node_features={"x": Columns("x", of="t.parquet", key="id")}
            ),
            "other": refused(edges=mixed[0], out=place / "range"),
            "text": refused(edges=text, num_nodes=3),
        },
    )

    # Interrupted by whoever asked, in the second stage; and killed with all its tasks, in the last.
    class Stop(Exception):
        pass

    def stop(phase, act):
        def follow(event):
            if event.get("phase") == phase and event["done"]:
                act()
        return follow

    def leave():
        raise Stop

    large = [save(f"large-{n}.npy", edges_of(5000, 200_000)) for n in range(2)]
    asked = {"edges": large, "num_parts": 2, "out": place / "stopped", "edge_ids": True}
    try:
        cluster.build(**asked, progress=stop("partition", leave))
    except Stop:
        pass
    held = sorted(entry.name for entry in (place / "stopped" / ".overspill-cluster").iterdir())
    killed = subprocess.run(
        [sys.executable, "-c", """
import os, signal, sys, json
import ray
from overspill import cluster
asked = json.loads(sys.argv[1])
ray.init(address=sys.argv[2], _node_ip_address="127.0.0.2", log_to_driver=False)
def follow(event):
    if event.get("phase") == "build rows":
        os.kill(os.getpid(), signal.SIGKILL)
cluster.build(**asked, progress=follow)
""", json.dumps({**asked, "out": str(asked["out"])}), nodes.address], check=False)
    seen = []
    same_build = cluster.build(**asked, progress=lambda event: seen.append(event["phase"]))
    ov.partition_dataset(large, 2, out=place / "stopped-whole", edge_ids=True)
    again = cluster.build(**asked)
    command = subprocess.run(
        [sys.executable, "-c", "from overspill.cli import main; main()", "cluster", "finalise",
         "--out", str(asked["out"]), "--address", nodes.address, "--json"],
        capture_output=True, text=True, check=False,
    )
    report(
        stopped={
            "planned": "plan.json" in held,
            "killed": killed.returncode,
            "differences": differences(place / "stopped", place / "stopped-whole"),
            "staged again": "partition" in seen,
            "same": again.identifier == same_build.identifier,
            "to stage": cluster.partition_build(asked["out"]),
            "command": command.stdout or command.stderr,
        }
    )
'''


@pytest.fixture(scope="module")
def found(
    on_cluster: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    return on_cluster(SCRIPT, arguments=[str(tmp_path_factory.mktemp("built"))])


@pytest.mark.parametrize("case", ["range", "hash", "balanced", "many", "typed"])
def test_the_parts_equal_those_of_the_whole(found: dict[str, Any], case: str) -> None:
    assert found[case]["differences"] == []


def test_both_machines_build_and_nothing_staged_is_left(found: dict[str, Any]) -> None:
    for case in ("range", "many"):
        assert found[case]["left"] == ["books", "partition.json"]
    assert found["typed"]["edges"] == 500
    # Parts lie on a disk that both see: whichever tells first.
    assert set(found["range"]["machines"]) <= {"127.0.0.2", "127.0.0.3"}


REFUSALS = {
    "out of range": ("InputError: machine 127.0.0.", "bad.npy", "900 nodes", "row 60"),
    "missing": ("InputError", "no-*.npy"),
    "nobody": ("InputError", "127.0.0.9:/", "127.0.0.2, 127.0.0.3"),
    "memory": ("InputError", "ndarray", "save it as .npy"),
    "ids": ("InputError", "ids='remap'", "ov.partition_dataset"),
    "order": ("InputError", "order='degree'", "ov.build_dataset"),
    "rows": ("InputError", "x.npy", "900 rows for 800 nodes"),
    "columns": ("InputError", "Columns('x'", "save them as .npy"),
    "other": ("OutputDirError", "a partition of other inputs or options"),
    "text": ("InputError", "text.parquet", "are text"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_built_is_refused_with_a_remedy(found: dict[str, Any], case: str) -> None:
    told = found["refusals"][case]
    assert all(part in told for part in (*REFUSALS[case], "remedy: ")), told


def test_a_build_that_was_stopped_and_one_that_was_killed_go_on(found: dict[str, Any]) -> None:
    stopped = found["stopped"]
    assert stopped["planned"] and stopped["killed"] == -9
    assert stopped["differences"] == []
    assert not stopped["staged again"] and stopped["same"]
    assert stopped["to stage"] is False


def test_the_command_tells_what_is_complete(found: dict[str, Any]) -> None:
    told = json.loads(found["stopped"]["command"])
    assert [part["index"] for part in told["parts"]] == [0, 1]
    assert sum(part["edges"] for part in told["parts"]) == 400_000
