"""Packs: what was put in comes out; what is unfinished, damaged or of something else does not."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from confined import PythonResult, make_cold
from overspill.build.directory import MARKER_NAME
from overspill.errors import (
    FormatError,
    InputError,
    NoRoomError,
    OutputDirError,
    StaleFileError,
)
from overspill.graph.dataset import Dataset
from overspill.graph.reading.pack_manifest import PACK_NAME, PackRecipe
from overspill.graph.reading.pack_writer import PackWriter
from overspill.graph.reading.packing import Pack, open_pack
from overspill.linux.cache import cached_bytes
from overspill.settings import child_environment
from reading_graphs import (
    BUYS,
    DTYPES,
    random_rows,
    same_bytes,
    write_market,
    write_wide,
    zipf_batches,
)

X, W = ("user", "x"), (BUYS, "w")


def recipe_of(held_dataset: Dataset, **changes: Any) -> PackRecipe:
    held = PackRecipe(
        dataset=held_dataset.manifest.identifier,
        seed=7,
        options={"num_neighbors": [15, 10], "replace": False},
        arrays={X: "users", W: "places"},
    )
    return replace(held, **changes)


def batches_of(dataset: Dataset, count: int = 5) -> list[dict[str, np.ndarray]]:
    users = zipf_batches(300, count, 60)
    places = zipf_batches(2000, count, 90, seed=1)
    return [
        {
            "users": users[i][: 20 * i],  # the first batch has none
            "places": places[i],
            "ends": np.arange(6 * i, dtype=np.int32).reshape(-1, 2) + i,
        }
        for i in range(count)
    ]


def write_pack(path: Path, dataset: Dataset, recipe: PackRecipe, count: int = 5) -> None:
    with PackWriter(path, dataset, recipe) as writer:
        for parts in batches_of(dataset, count):
            writer.append(parts)
        writer.finish()


def require_same(pack: Pack, dataset: Dataset, count: int = 5) -> None:
    assert pack.batches == count
    assert pack.parts == ["users", "places", "ends"]
    for i, parts in enumerate(batches_of(dataset, count)):
        for name, part in parts.items():
            assert pack.part_shape(i, name) == part.shape
            out = torch.empty(part.shape, dtype=pack.part_dtype(name))
            pack.read_part(i, name, out)
            assert out.equal(torch.from_numpy(part))
        rows = torch.empty((len(parts["users"]), 8))
        pack.read_rows(i, X, rows)
        assert rows.equal(dataset.features("x", "user")[torch.from_numpy(parts["users"])])
        weights = torch.empty(len(parts["places"]))
        pack.read_rows(i, W, weights)
        assert weights.equal(dataset.edge_features("w", BUYS)[torch.from_numpy(parts["places"])])


def opened(path: Path, recipe: PackRecipe) -> Pack:
    pack = open_pack(path, recipe)
    assert pack is not None
    return pack


def test_what_was_put_in_comes_out(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    recipe, path = recipe_of(dataset), tmp_path / "pack"
    assert open_pack(path, recipe) is None
    write_pack(path, dataset, recipe)
    assert sorted(entry.name for entry in path.iterdir()) == [
        "counts", PACK_NAME, "parts", "rows"
    ]  # fmt: skip
    with opened(path, recipe) as pack:
        require_same(pack, dataset)
        assert pack.verify() == []
        with pickle.loads(pickle.dumps(pack)) as sent:
            require_same(sent, dataset)
        assert repr(pack) == f"Pack({str(path)!r}, batches=5)"


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_dtype(tmp_path: Path, dtype: str) -> None:
    rows = random_rows(dtype, (500, 3))
    dataset = write_wide(tmp_path / "ds", {"x": (dtype, rows)}, 500)
    recipe = PackRecipe(
        dataset=dataset.manifest.identifier, seed=0, arrays={("node", "x"): "nodes"}
    )
    lists = zipf_batches(500, 3, 200)
    with PackWriter(tmp_path / "pack", dataset, recipe) as writer:
        for ids in lists:
            writer.append({"nodes": torch.from_numpy(ids)})
        writer.finish()
    whole = dataset.features("x")
    with opened(tmp_path / "pack", recipe) as pack:
        for i, ids in enumerate(lists):
            out = torch.empty((200, 3), dtype=whole.dtype)
            pack.read_rows(i, ("node", "x"), out)
            assert same_bytes(out, whole[torch.from_numpy(ids)])


def test_a_pack_of_no_batch(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    recipe = recipe_of(dataset, arrays={})
    write_pack(tmp_path / "pack", dataset, recipe, 0)
    with opened(tmp_path / "pack", recipe) as pack:
        assert pack.batches == 0
        assert pack.parts == []
        with pytest.raises(InputError, match="no batch 0 among the 0"):
            pack.part_shape(0, "users")


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"seed": 8}, InputError, "seed 7, not 8"),
        (
            {"options": {"num_neighbors": [15]}},
            InputError,
            r"num_neighbors \[15, 10\], not \[15\]; replace False",
        ),
        ({"arrays": {X: "users"}}, InputError, "arrays"),
        ({"dataset": "another"}, StaleFileError, "another dataset"),
    ],
)
def test_a_pack_of_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], told: str
) -> None:
    dataset = write_market(tmp_path / "ds")
    write_pack(tmp_path / "pack", dataset, recipe_of(dataset))
    with pytest.raises(error, match=f"{told}.*remove the directory"):
        open_pack(tmp_path / "pack", recipe_of(dataset, **changes))


def test_leaving_without_finishing_leaves_nothing(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    path = tmp_path / "pack"
    with PackWriter(path, dataset, recipe_of(dataset)) as writer:
        for parts in batches_of(dataset):
            writer.append(parts)
        assert writer.batches == 5
        assert open_pack(path, recipe_of(dataset)) is None
        with pytest.raises(OutputDirError), PackWriter(path, dataset, recipe_of(dataset)):
            pass
    assert not path.exists()


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"users": np.zeros(3, np.int64)}, "has the parts"),
        ({"users": np.zeros(3, np.int32), "places": np.zeros(2, np.int64)}, "rows int32"),
        ({"users": np.array([300]), "places": np.zeros(1, np.int64)}, "not among 300"),
        ({"users": np.array([-1]), "places": np.zeros(1, np.int64)}, "not among 300"),
    ],
)
def test_batches_that_cannot_be_packed_leave_nothing(
    tmp_path: Path, second: dict[str, np.ndarray], told: str
) -> None:
    dataset = write_market(tmp_path / "ds")
    first = {"users": np.zeros(3, np.int64), "places": np.zeros(2, np.int64)}
    with (
        pytest.raises(InputError, match=told),
        PackWriter(tmp_path / "pack", dataset, recipe_of(dataset)) as writer,
    ):
        writer.append(first)
        writer.append(second)
        writer.finish()
    assert not (tmp_path / "pack").exists()


def test_rows_must_be_named_by_whole_numbers(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    for users in (np.zeros(3), np.zeros((3, 1), np.int64)):
        with (
            pytest.raises(InputError, match="missing or not int64"),
            PackWriter(tmp_path / "pack", dataset, recipe_of(dataset)) as writer,
        ):
            writer.append({"users": users, "places": np.zeros(1, np.int64)})
    with pytest.raises(InputError, match="no array 'z'"):
        PackWriter(tmp_path / "pack", dataset, recipe_of(dataset, arrays={("user", "z"): "users"}))
    with pytest.raises(NoRoomError, match="memory"):
        PackWriter(tmp_path / "pack", dataset, recipe_of(dataset), memory_bytes=1 << 20)


@pytest.mark.parametrize("name", ["rows/0", "parts/1", "counts"])
def test_files_that_are_gone_or_cut_are_noticed(tmp_path: Path, name: str) -> None:
    dataset = write_market(tmp_path / "ds")
    recipe, path = recipe_of(dataset), tmp_path / "pack"
    write_pack(path, dataset, recipe)
    file = path / name
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(StaleFileError, match="where its header says"):
        open_pack(path, recipe)
    file.unlink()
    with pytest.raises(StaleFileError):
        open_pack(path, recipe)


def test_a_file_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    recipe, path = recipe_of(dataset), tmp_path / "pack"
    write_pack(path, dataset, recipe)
    with opened(path, recipe) as pack:
        out = torch.empty((60, 8))
        pack.read_rows(4, X, out)
        os.truncate(path / "rows/0", 4096 + 100)
        with pytest.raises(StaleFileError, match="cut"):
            pack.read_rows(4, X, out)


def test_changed_bytes_are_found_by_verify(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    recipe, path = recipe_of(dataset), tmp_path / "pack"
    write_pack(path, dataset, recipe)
    with (path / "rows/0").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\xfe")
    with opened(path, recipe) as pack:
        assert [Path(problem.path).name for problem in pack.verify()] == ["0"]


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 99},
        {"format": "overspill-dataset"},
        {"batches": 4},
        {"parts": {}},
        {"rows": []},
        {"counts": None},
    ],
    ids=str,
)
def test_a_manifest_that_cannot_be_right_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    dataset = write_market(tmp_path / "ds")
    recipe, path = recipe_of(dataset), tmp_path / "pack"
    write_pack(path, dataset, recipe)
    held = json.loads((path / PACK_NAME).read_text())
    (path / PACK_NAME).write_text(json.dumps(held | damage))
    with pytest.raises(FormatError, match="cannot be understood"):
        open_pack(path, recipe)


def test_a_manifest_that_is_no_file_is_refused_unread(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    recipe, path = recipe_of(dataset), tmp_path / "pack"
    write_pack(path, dataset, recipe)
    (path / PACK_NAME).unlink()
    os.mkfifo(path / PACK_NAME)  # whose open would wait for a writer
    with pytest.raises(FormatError, match="not a regular file"):
        open_pack(path, recipe)


def test_batches_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    recipe, path = recipe_of(dataset), tmp_path / "pack"
    write_pack(path, dataset, recipe)
    with (path / "counts").open("r+b") as file:
        file.seek(4096)
        file.write((10**6).to_bytes(8, "little"))
    with pytest.raises(FormatError, match="do not add up"):
        open_pack(path, recipe)


def test_a_finished_pack_is_not_written_over(tmp_path: Path) -> None:
    dataset = write_market(tmp_path / "ds")
    recipe, path = recipe_of(dataset), tmp_path / "pack"
    write_pack(path, dataset, recipe)
    with pytest.raises(OutputDirError, match="finished pack"):
        write_pack(path, dataset, recipe)
    with opened(path, recipe) as pack:
        require_same(pack, dataset)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[4])
from pathlib import Path
import overspill as ov
from overspill.graph.reading import pack_writer
from test_packing import batches_of, recipe_of, PackWriter

dataset, path, when = ov.open_dataset(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if when == "publish":
    pack_writer.PackManifest.publish = die
with PackWriter(path, dataset, recipe_of(dataset)) as writer:
    for parts in batches_of(dataset):
        writer.append(parts)
    if when == "append":
        die()
    writer.finish()
"""


@pytest.mark.parametrize("when", ["append", "publish"])
def test_a_killed_writer_leaves_what_is_never_read_and_starts_over(
    tmp_path: Path, when: str
) -> None:
    dataset = write_market(tmp_path / "ds")
    path, recipe = tmp_path / "pack", recipe_of(dataset)
    here = Path(__file__).resolve()
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    roots = os.pathsep.join([str(here.parent), str(here.parents[2])])
    done = subprocess.run(
        [sys.executable, str(script), str(dataset.path), str(path), when, str(here.parents[2])],
        env=child_environment() | {"PYTHONPATH": roots},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert (path / MARKER_NAME).exists()
    assert open_pack(path, recipe) is None
    write_pack(path, dataset, recipe)
    with opened(path, recipe) as pack:
        require_same(pack, dataset)
        assert pack.verify() == []


OUT_OF_CORE = """
import sys, numpy as np, torch
from pathlib import Path
import overspill as ov
from overspill.graph.reading.pack_writer import PackWriter
from overspill.graph.reading.packing import open_pack
from overspill.graph.reading.pack_manifest import PackRecipe

dataset, path, X = ov.open_dataset(sys.argv[1]), Path(sys.argv[2]), ("node", "x")
recipe = PackRecipe(dataset=dataset.manifest.identifier, seed=0, arrays={X: "nodes"})
rng = np.random.default_rng(0)
with PackWriter(path, dataset, recipe, memory_bytes=96 << 20) as writer:
    for _ in range(20):
        writer.append({"nodes": rng.integers(0, 131072, 8000)})
    writer.finish()
out, nodes = torch.empty((8000, 512), dtype=torch.uint8), torch.empty(8000, dtype=torch.int64)
with open_pack(path, recipe) as pack:
    for i in range(20):
        pack.read_part(i, "nodes", nodes)
        pack.read_rows(i, X, out)
        assert out[:, :8].contiguous().view(torch.int64).view(-1).equal(nodes)
"""


def test_packing_and_reading_in_less_memory_than_the_rows(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    rows = np.zeros((131072, 512), np.uint8)
    rows[:, :8] = np.arange(131072).view(np.uint8).reshape(-1, 8)
    dataset = write_wide(tmp_path / "ds", {"x": ("uint8", rows)}, 131072)
    make_cold(dataset.path / "node.x")
    arguments = [dataset.path, tmp_path / "pack"]
    run_python(OUT_OF_CORE, arguments=arguments, limit_bytes=320 << 20).check()
    # Read in order and dropped behind: of 80 MB nothing stays in the page cache.
    assert cached_bytes(tmp_path / "pack/rows/0") < 16 << 20
