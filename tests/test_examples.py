"""Every example runs as it stands, says what it should, and leaves nothing in its directory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from overspill.settings import child_environment

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# It wants a cluster, and is run with its page by tests/cluster/test_ray_training.py.
ON_CLUSTER = {"train_on_ray"}
HERE = sorted(path for path in EXAMPLES.glob("*.py") if path.stem not in ON_CLUSTER)
# What each prints at its default size.
PRINTS = {
    "embed_all_nodes": r"1000 vectors of 8, none left out: True\n\(1000, 8\)",
    "joblib_rows": r"4096 rows, mean norm 2\.8284",
    "link_prediction": r"(told links from others: .*\n){3}told links from others: (0\.[89]|1\.)\d+",
    "partition": r"(Dataset\(.*\n){4}homes \[0, \d, 3\]\n0 0\.0\n1000 1000\.0\n1999 1999\.0",
    "share_between_processes": r".*\n8 MiB filled by 8 processes, right: True\n.*8.*",
    "small_shared_memory": r"8 batches of 4 MiB, mean 15\.5",
    "text_ids": r"Dataset\(.*\nperson-000007 has \d+ in-edges, from\n(  person-\d+, (-1|\d\d)\n?)+",
    "train_cora": r"accuracy 0\.8\d+",
}

# Torch and PyG are imported once, and each example runs in a fork of that as its main program.
DRIVER = """
import json
import os
import runpy
import sys

import torch_geometric.nn

import overspill.graph
import overspill.pyg

for path in sys.argv[1:]:
    name = os.path.basename(path).removesuffix(".py")
    os.mkdir(name)
    child = os.fork()
    if child == 0:
        for number, stream in enumerate(("out", "err"), start=1):
            os.dup2(os.open(f"{name}.{stream}", os.O_CREAT | os.O_WRONLY, 0o600), number)
        os.chdir(name)
        sys.argv = [path]
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([name, status]), flush=True)
"""


@dataclass(frozen=True)
class Ran:
    """How an example ended."""

    status: int
    out: str
    err: str
    left: list[str]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    place = tmp_path_factory.mktemp("examples")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, HERE)],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(OVERSPILL_DIR="", OVERSPILL_RUN="", OMP_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for name, status in map(json.loads, done.stdout.splitlines()):
        out, err = ((place / f"{name}.{stream}").read_text() for stream in ("out", "err"))
        found[name] = Ran(status, out, err, [path.name for path in (place / name).iterdir()])
    return found


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_it_runs_and_leaves_nothing(name: str, ran: dict[str, Ran]) -> None:
    assert ran[name].status == 0, ran[name].err
    assert re.fullmatch(PRINTS[name], ran[name].out.strip()), ran[name].out
    assert ran[name].left == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_it_is_short_and_says_how_to_run_it(path: Path) -> None:
    assert path.stem in PRINTS or path.stem in ON_CLUSTER, "say here what it prints"
    text = path.read_text()
    assert len(text.splitlines()) < 60
    assert f"\npython examples/{path.name}" in text.split('"""')[1]
