from __future__ import annotations

import json
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import overspill as ov
from confined import PythonResult
from overspill.build.directory import MARKER_NAME
from overspill.errors import (
    DiskRefusedError,
    FormatError,
    InputError,
    NoRoomError,
    OutputDirError,
    SettingsError,
    StaleFileError,
)
from overspill.pyg import NeighborLoader
from overspill.storage import write_behind
from overspill.storage.checksums import verify_checksums
from overspill.storage.manifest import read_manifest
from overspill.storage.part_records import METHODS
from overspill.storage.partition_manifest import PARTITION_NAME
from parted import require_parts, write_typed
from small_graphs import random_graph, write_graph, write_nodes

TYPES = {("a", "to", "b"): 40, ("b", "back", "a"): 0, ("a", "of", "none"): 0}


@pytest.mark.parametrize("method", METHODS)
def test_more_parts_than_nodes_and_types_of_nothing(tmp_path: Path, method: str) -> None:
    """Three nodes over eight parts; a type without nodes; edge types without edges."""
    graph = write_typed(tmp_path / "whole", {"a": 3, "b": 2, "none": 0}, TYPES)
    found = ov.partition_dataset(tmp_path / "whole", 8, out=tmp_path / "out", method=method)
    require_parts(graph, found, method, 8)
    assert sum(part.num_nodes == 0 for part in found.parts) >= 3
    assert sum(part.num_edges for part in found.parts) == 40


@pytest.mark.parametrize("parts", [255, 256, 257])
def test_the_book_is_as_narrow_as_the_parts_allow(tmp_path: Path, parts: int) -> None:
    write_nodes(tmp_path / "whole", [3, 1])
    book = ov.partition_dataset(
        tmp_path / "whole", parts, out=tmp_path / "out", method="hash"
    ).books["node"]
    assert isinstance(book, ov.TensorPartitionBook) and book.num_partitions == parts
    assert book.dtype == (torch.uint8 if parts <= 256 else torch.uint16)
    assert ov.is_disk_backed(book.partitions)


def test_the_same_dataset_gives_the_same_parts(tmp_path: Path) -> None:
    random_graph(tmp_path / "whole")
    one, two = (
        ov.partition_dataset(
            ov.open_dataset(tmp_path / "whole"), 3, out=tmp_path / name, method="hash"
        )
        for name in ("one", "two")
    )
    assert one.manifest.identifier == two.manifest.identifier
    for first, second in zip(one.parts, two.parts, strict=True):
        assert first.manifest.identifier == second.manifest.identifier
        assert first.manifest.files() == second.manifest.files()
    other = ov.partition_dataset(tmp_path / "whole", 4, out=tmp_path / "other", method="hash")
    assert other.manifest.identifier != one.manifest.identifier


def test_edges_are_built_partitioned_and_removed(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    np.save(tmp_path / "e.npy", rng.integers(0, 50, (2, 300)))
    events: list[dict[str, Any]] = []
    found = ov.partition_dataset(
        tmp_path / "e.npy", 3, out=tmp_path / "out", num_nodes=50, progress=events.append
    )
    whole = ov.build_dataset(tmp_path / "whole", edges=tmp_path / "e.npy", num_nodes=50)
    assert sum(part.num_edges for part in found.parts) == 300
    joined = torch.cat([part.topology().indices for part in found.parts])
    assert torch.equal(joined, whole.topology().indices)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["books", "part-00000", "part-00001", "part-00002", "partition.json"]
    moved = [event for event in events if event.get("phase") == "partition"][-1]
    assert moved["done"] == moved["total"] > 0


def test_a_part_is_not_sampled(tmp_path: Path) -> None:
    random_graph(tmp_path / "whole")
    part = ov.partition_dataset(tmp_path / "whole", 2, out=tmp_path / "out").parts[1]
    with pytest.raises(InputError, match="one of 2 parts"):
        part.sampler([5])
    with pytest.raises(InputError, match="one of 2 parts"):
        NeighborLoader(part, [5])


@pytest.mark.parametrize("method", ["range", "hash"])
def test_nodes_of_other_parts_are_refused(tmp_path: Path, method: str) -> None:
    random_graph(tmp_path / "whole")
    found = ov.partition_dataset(tmp_path / "whole", 2, out=tmp_path / "out", method=method)
    mine, others = (part.part.global_ids().long() for part in found.parts)
    part = found.parts[0].part
    with pytest.raises(InputError, match=rf"2 of 3 .*the first is {int(others[4])} at position 1"):
        part.local_ids([int(mine[0]), int(others[4]), int(others[0])])
    with pytest.raises(InputError, match="there are 400"):
        part.local_ids([400])
    with pytest.raises(InputError):
        part.global_ids([len(mine)])
    with pytest.raises(InputError, match="other parts"):
        found.parts[0].lookup([int(others[0])])
    with pytest.raises(InputError, match="one of: node"):
        part.local_ids([0], "edge")


def test_raw_ids_of_renumbered_nodes_stay_with_the_whole(tmp_path: Path) -> None:
    write_nodes(tmp_path / "whole", [5, 9, 7], order=np.array([2, 0, 1], np.int32))
    part = ov.partition_dataset(tmp_path / "whole", 2, out=tmp_path / "out").parts[0]
    for ask in (part.node_ids, lambda: part.lookup([5])):
        with pytest.raises(InputError, match="kept with the whole"):
            ask()
    with pytest.raises(InputError, match="stay with the whole"):
        ov.partition_dataset(tmp_path / "e.npy", 2, out=tmp_path / "new", order="degree")
    assert not (tmp_path / "new").exists()


def test_a_partition_and_its_parts_pickle_by_path(tmp_path: Path) -> None:
    random_graph(tmp_path / "whole", num_nodes=2000)
    found = ov.partition_dataset(tmp_path / "whole", 2, out=tmp_path / "out", method="hash")
    for held in (found, found.parts[1]):
        assert len(pickle.dumps(held)) < 1024
    again = pickle.loads(pickle.dumps(found))
    assert again.manifest == found.manifest and again.path == found.path
    part = pickle.loads(pickle.dumps(found.parts[1]))
    assert torch.equal(part.part.global_ids(), found.parts[1].part.global_ids())
    assert repr(part.part) == "Part(1 of 2, by hash)"
    (tmp_path / "out").rename(tmp_path / "moved")
    ov.partition_dataset(tmp_path / "whole", 3, out=tmp_path / "out", method="hash")
    with pytest.raises(StaleFileError, match="another partition"):
        found.__reduce__()[0](*found.__reduce__()[1])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"method": "metis"}, InputError, "range, hash, degree-balanced"),
        ({"num_parts": 0}, InputError, "1 or more"),
        ({"num_parts": 2.0}, InputError, "1 or more"),
        ({"num_parts": True}, InputError, "1 or more"),
        ({"num_nodes": 3}, InputError, "source is a dataset already"),
        ({"memory_limit": "1MiB"}, NoRoomError, 'memory_limit to "32MiB"'),
        ({"memory_limit": "some"}, ValueError, "not a size"),
        ({"memory_limit": 1.5}, SettingsError, "not a size"),
        ({"memory_limit": np.int64(1)}, NoRoomError, 'memory_limit to "32MiB"'),
        ({"source": "part"}, InputError, "is itself a part"),
        ({"out": "whole"}, OutputDirError, "finished dataset"),
        ({"out": "done"}, OutputDirError, "finished partition"),
        ({"source": "nothing"}, InputError, "nothing"),
    ],
)
def test_bad_arguments(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    random_graph(tmp_path / "whole")
    done = ov.partition_dataset(tmp_path / "whole", 1, out=tmp_path / "done")
    sources = {"part": done.parts[0].path, "nothing": tmp_path / "nothing"}
    source = sources.get(options.pop("source", ""), tmp_path / "whole")
    out = tmp_path / options.pop("out", "out")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=text):
        ov.partition_dataset(source, options.pop("num_parts", 2), out=out, **options)
    assert sorted(tmp_path.rglob("*")) == before


def test_parts_in_memory_are_refused(tmp_path: Path, memory_disk: Callable[..., Path]) -> None:
    random_graph(tmp_path / "whole")
    with pytest.raises(OutputDirError, match="is memory"):
        ov.partition_dataset(tmp_path / "whole", 2, out=memory_disk() / "out")


def test_a_disk_without_room_is_refused_at_once(
    tmp_path: Path, loop_disk: Callable[[int], Path]
) -> None:
    random_graph(tmp_path / "whole", num_nodes=40_000, width=64)  # 10 MiB
    disk = loop_disk(8 << 20)
    with pytest.raises(DiskRefusedError, match="parts do not fit") as caught:
        ov.partition_dataset(tmp_path / "whole", 2, out=disk / "out")
    assert caught.value.needed_bytes > caught.value.available_bytes
    assert not (disk / "out").exists()


@pytest.mark.parametrize("method", ["range", "hash"])
@pytest.mark.parametrize("call", ["write_all", "fsync", "rename"])
def test_a_refusal_at_any_moment_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, call: str
) -> None:
    random_graph(tmp_path / "whole", num_nodes=40, num_edges=90, width=2)
    owner = {"write_all": write_behind, "fsync": os, "rename": Path}[call]
    real, calls, at = getattr(owner, call), 0, 1

    def refuse(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            if call == "write_all":
                raise DiskRefusedError("full", path="x", errno=28)
            raise OSError(28, "No space left on device")
        return real(*arguments, **options)

    monkeypatch.setattr(owner, call, refuse)
    refused = 0
    # A directory is claimed by two writes of the marker, which stays where these fail.
    for at in (3, 4, 6, 9, 20, 40) if call == "fsync" else (1, 3, 4, 6, 9, 20):
        calls = 0
        try:
            ov.partition_dataset(tmp_path / "whole", 2, out=tmp_path / f"out{at}", method=method)
        except DiskRefusedError:
            refused += 1
            assert not (tmp_path / f"out{at}").exists()
        else:
            assert calls < at
    assert refused >= 4


KILLED = """
import os, signal, sys
import overspill as ov
ov.partition_dataset
from overspill.build.parting import split, split_sinks
from overspill.graph import partition

whole, out, where = sys.argv[1:]
kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
real = partition.build_dataset

def build(*arguments, **options):
    real(*arguments, **options)
    kill()

if where == "file":
    split_sinks.Sink.close = kill
elif where == "part":
    split.publish_manifest = kill
elif where == "built":
    partition.build_dataset = build
ov.partition_dataset(whole, 3, out=out, method="hash")
"""


@pytest.mark.parametrize("where", ["file", "part", "built"])
def test_a_kill_leaves_what_cannot_be_opened_and_starts_over(
    tmp_path: Path, run_python: Callable[..., PythonResult], where: str
) -> None:
    random_graph(tmp_path / "whole")
    np.save(tmp_path / "e.npy", np.arange(40).reshape(2, 20))
    source = tmp_path / ("e.npy" if where == "built" else "whole")
    out = tmp_path / "out"
    killed = run_python(KILLED, arguments=[source, out, where])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (out / MARKER_NAME).exists() and (out / "scratch/whole").exists() == (where == "built")
    with pytest.raises(FormatError, match="not an Overspill partition"):
        ov.open_partition(out)
    if where in ("file", "part"):
        with pytest.raises(FormatError):
            ov.open_dataset(out / "part-00000")
    found = ov.partition_dataset(tmp_path / "whole", 2, out=out)
    assert [verify_checksums(part.path, part.manifest) for part in found.parts] == [[], []]
    names = sorted(path.name for path in out.iterdir())
    assert names == ["books", "part-00000", "part-00001", "partition.json"]


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"},
        {"version": 2},
        {"method": "metis"},
        {"parts": []},
        {"parts": [{"path": "../whole", "identifier": "0"}]},
        {"books": {"node": {"count": 7}}},
        {"books": None},
    ],
)
def test_a_damaged_partition_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    write_nodes(tmp_path / "whole", [1, 2])
    ov.partition_dataset(tmp_path / "whole", 2, out=tmp_path / "out")
    path = tmp_path / "out" / PARTITION_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FormatError, match=r"partition\.json"):
        ov.open_partition(tmp_path / "out")


@pytest.mark.parametrize(
    "change",
    [
        {"index": 2},
        {"index": -1},
        {"method": "x"},
        {"nodes": {}},
        {"nodes": {"node": {"global_count": 0, "first": 0, "ids": None, "raw_ids": True}}},
        {"nodes": {"node": {"global_count": 2, "first": None, "ids": None, "raw_ids": True}}},
        {"nodes": {"node": {"global_count": 2, "first": 2, "ids": None, "raw_ids": True}}},
        {"nodes": {"node": {"global_count": 2, "first": 0, "ids": None, "raw_ids": 1}}},
    ],
)
def test_a_damaged_part_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    write_nodes(tmp_path / "whole", [1, 2])
    ov.partition_dataset(tmp_path / "whole", 2, out=tmp_path / "out")
    path = tmp_path / "out" / "part-00000" / "manifest.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps(held | {"partition": held["partition"] | change}))
    with pytest.raises(FormatError, match="cannot be understood"):
        read_manifest(path.parent)


def test_a_part_of_another_partition_is_refused(tmp_path: Path) -> None:
    write_nodes(tmp_path / "whole", [1, 2])
    ov.partition_dataset(tmp_path / "whole", 2, out=tmp_path / "out")
    (tmp_path / "out" / "part-00000").rename(tmp_path / "kept")
    with pytest.raises(FormatError):
        ov.open_partition(tmp_path / "out")
    (tmp_path / "out" / "part-00001").rename(tmp_path / "out" / "part-00000")
    with pytest.raises(StaleFileError, match="is not part 0"):
        ov.open_partition(tmp_path / "out")


MEMORY = """
import sys
import overspill as ov
ov.partition_dataset
from overspill.build.parting.split_moves import BUFFER_BYTES, warm_routing
from overspill.linux.peaks import PeakSampler
from overspill.linux.processes import process_memory

warm_routing()
before = process_memory().anon_bytes
with PeakSampler(children=False) as sampler:
    ov.partition_dataset(sys.argv[1], 9, out=sys.argv[2], method=sys.argv[3])
    sampler.sample()
taken = sampler.peaks.anon_bytes - before
assert taken < BUFFER_BYTES + (12 << 20), f"{taken} bytes"  # threads' own memory included
"""


@pytest.mark.parametrize(("method", "rows"), [("range", 1 << 18), ("hash", 3)])
def test_memory_is_fixed_however_long_a_file_and_a_row(
    tmp_path: Path, run_python: Callable[..., PythonResult], method: str, rows: int
) -> None:
    """64 MiB of narrow rows, or of three rows, each wider than all that is read at once."""
    wide = np.ones((rows, (16 << 20) // rows), np.float32)
    write_graph(
        tmp_path / "whole", np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), {"x": wide}
    )
    run_python(
        MEMORY, arguments=[tmp_path / "whole", tmp_path / "out", method], limit_bytes=440 << 20
    ).check()
