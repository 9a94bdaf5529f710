"""The main job, whole: it ends well under its hard limit; without Overspill it is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from capabilities import demand
from confined import PythonResult, make_cold
from overspill.cli.demo.confined import make_group, run_confined
from overspill.cli.demo.generate import CLASSES, generate_graph
from overspill.cli.demo.large import LargeSpec
from overspill.cli.demo.recorded import PartRecording
from overspill.errors import BuildFailedError, NoRoomError, UnavailableError
from overspill.linux.cgroups import PROC, memory_directories
from overspill.linux.confine import MemoryGroup
from overspill.units import parse_bytes

LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Demo:
    """What the default demo printed, and where its data still lies."""

    told: str
    directory: Path

    def row(self, name: str) -> str:
        found = re.search(rf"^{name}\s+(.*?)\s*$", self.told, re.MULTILINE)
        assert found is not None, self.told
        return found.group(1)

    def size(self, name: str) -> int:
        found = re.search(rf"{name} ([\d.]+ [KMG]?i?B)", self.row("measured peak"))
        assert found is not None, self.told
        return parse_bytes(found.group(1))


WHOLE = "from overspill.cli import main; main()"
# In all but the number of batches, which quick's is enough to learn from.
FEWER_BATCHES = f"""
from overspill.cli.demo import verb
made = verb._large_spec
verb._large_spec = lambda *asked: made(*asked[:-1], quick=True)
{WHOLE}
"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    demand("memory_cgroup")
    directory = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-c", FEWER_BATCHES, "demo", "--keep", "--dir", str(directory)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    (kept,) = directory.glob("overspill-demo-*")
    yield Demo(done.stdout, kept)
    subprocess.run(["rm", "-r", str(directory)], check=True)


@pytest.mark.slow
@pytest.mark.requires("memory_cgroup")
def test_the_default_demo_trains_within_its_hard_limit(demo: Demo) -> None:
    assert demo.row("memory limit") == "1.0 GiB (hard)"
    assert "4.0 GiB of features" in demo.row("data")
    assert 0 < demo.size("anonymous") <= demo.size("together") <= LIMIT_BYTES
    assert "page cache" in demo.row("measured peak")
    edges_per_second, rows_per_second = demo.row("build"), demo.row("gather")
    assert re.match(r"[\d.,]+[MG]? edges/s", edges_per_second)
    assert re.match(r"[\d.,]+[MG]? rows/s", rows_per_second)
    in_memory = demo.row("the same in memory").removeprefix("at least ")
    assert parse_bytes(in_memory) > 5 * LIMIT_BYTES
    accuracy = float(demo.row("accuracy").split()[0])
    assert accuracy > 5 / CLASSES


@pytest.mark.slow
@pytest.mark.requires("memory_cgroup")
def test_cora_reaches_what_the_field_reaches(demo: Demo) -> None:
    found = re.search(r"test accuracy ([\d.]+)", demo.told)
    assert found is not None
    assert float(found.group(1)) >= 0.82


@pytest.mark.slow
@pytest.mark.memory
@pytest.mark.requires("memory_cgroup")
def test_without_overspill_the_same_data_is_killed(
    demo: Demo, run_python: Callable[..., PythonResult]
) -> None:
    inputs = demo.directory / "input"
    make_cold(inputs / "x.npy", inputs / "edges.npy")
    plain = """
        import sys
        import numpy as np
        import torch
        from torch_geometric.data import Data

        print("started", flush=True)
        edges, x = (torch.from_numpy(np.load(path)) for path in sys.argv[1:])
        Data(x=x, edge_index=edges).validate()
        print("survived")
    """
    result = run_python(
        plain, arguments=(inputs / "edges.npy", inputs / "x.npy"), limit_bytes=LIMIT_BYTES
    )
    assert result.returncode == -signal.SIGKILL
    assert result.kills >= 1
    assert result.stdout.split() == ["started"]


def test_the_demo_refuses_a_directory_in_memory(memory_disk: Callable[..., Path]) -> None:
    disk = memory_disk("tmpfs", nbytes=1 << 20)
    done = _failing_demo(disk)
    assert "tmpfs" in done and "--dir" in done
    assert list(disk.iterdir()) == []


def test_the_demo_refuses_a_directory_that_is_none_and_says_how_to_make_it(tmp_path: Path) -> None:
    done = " ".join(_failing_demo(tmp_path / "no such").split())
    assert "not a directory" in done and f"what to do: mkdir -p '{tmp_path}/no such'" in done
    assert list(tmp_path.iterdir()) == []


def test_the_demo_refuses_a_report_that_it_could_not_write(tmp_path: Path) -> None:
    report = tmp_path / "missing" / "report.html"
    done = " ".join(_failing_demo(tmp_path, "--report", str(report)).split())
    assert "report.html cannot be written" in done and "make the directory first" in done
    assert list(tmp_path.iterdir()) == []


def test_the_demo_refuses_a_disk_without_room(loop_disk: Callable[[int], Path]) -> None:
    disk = loop_disk(64 << 20)
    done = _failing_demo(disk)
    assert "needed: 9.2 GiB" in done and "available:" in done and "--size" in done
    assert [path.name for path in disk.iterdir()] == ["lost+found"]


SMALL = dict(num_nodes=20_000, memory_limit_bytes=2 << 30, train_batches=3, test_batches=1)


def test_where_no_limit_can_be_set_memory_is_measured_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> MemoryGroup:
        raise UnavailableError("no memory group can be made", remedy="run as root")

    monkeypatch.setattr(MemoryGroup, "create", refuse)
    group, told = make_group(1 << 30)
    assert group is None
    assert "measured instead" in told and "no memory group can be made" in told
    phases: list[str] = []
    spec = LargeSpec(directory=str(tmp_path), workers=1, **SMALL)
    recording = PartRecording(tmp_path / "report.json", "part 2", 2 << 30)
    result, peaks = run_confined(
        spec, None, report=lambda phase, *_: phases.append(phase), recording=recording
    )
    assert result["nodes"] == 20_000 and result["edges"] == 100_000
    assert peaks.anon_bytes > 100 << 20
    order = list(dict.fromkeys(phases))
    assert order[0] == "generate edges" and order[-2:] == ["train", "test"]
    assert "build: build rows" in order
    told = json.loads(recording.path.read_text())
    assert [phase["name"] for phase in told["phases"]] == order
    columns = told["columns"]
    assert set(columns["limit_bytes"]) == {2 << 30} and max(columns["anon_bytes"]) > 100 << 20
    assert columns["loader_batches"][-1] == 4 and columns["loader_rows"][-1] > 4 * 512


@pytest.mark.requires("memory_cgroup")
def test_a_kill_by_the_limit_is_named(
    tmp_path: Path, memory_group: Callable[[int], MemoryGroup]
) -> None:
    spec = LargeSpec(directory=str(tmp_path), workers=0, **SMALL)
    recording = PartRecording(tmp_path / "report.html", "part 2", 96 << 20)
    with pytest.raises(NoRoomError, match=r"over its limit.*--memory-limit"):
        run_confined(spec, memory_group(96 << 20), report=lambda *_: None, recording=recording)
    told = recording.path.read_text()
    assert "The kernel killed 1 process" in told and "ended by NoRoomError" in told
    assert "limit 96.0 MiB" in told


def test_a_refusal_in_the_confined_process_keeps_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        broken = tmp_path / "python"
        broken.write_text("#!/bin/sh\necho FileNotFoundError: missing >&2\nexit 1\n")
        broken.chmod(0o700)
        patch.setattr(sys, "executable", str(broken))
        spec = LargeSpec(directory=str(tmp_path), workers=0, **SMALL)
        with pytest.raises(BuildFailedError, match=r"(?s)part 2 ended with status 1.*missing"):
            run_confined(spec, None, report=lambda *_: None)
    spec = LargeSpec(directory=str(tmp_path), workers=0, **{**SMALL, "memory_limit_bytes": 1 << 20})
    with pytest.raises(BuildFailedError, match=r"part 2 failed: .*memory") as caught:
        run_confined(spec, None, report=lambda *_: None)
    assert caught.value.remedy and str(caught.value).count("remedy: ") == 1


# What part 1 leaves is seen with one signal, and after one epoch.
BOTH_PARTS = f"from overspill.cli.demo import cora; cora._EPOCHS = 1; {WHOLE}"
PART_2 = f"from overspill.cli.demo import verb; verb._part_1 = lambda *_: None; {WHOLE}"


@pytest.mark.parametrize(
    ("number", "script"),
    [(signal.SIGINT, BOTH_PARTS), (signal.SIGTERM, PART_2), (signal.SIGHUP, PART_2)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_an_interrupted_demo_leaves_nothing(
    tmp_path: Path, number: signal.Signals, script: str
) -> None:
    argv = [sys.executable, "-c", script, "demo", "--quick"]
    child = subprocess.Popen(
        [*argv, "--dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("Part 2"):
                break
        child.send_signal(number)
        _, told = child.communicate()
    assert child.returncode == 130
    assert "interrupted" in told and "Traceback" not in told
    assert list(tmp_path.iterdir()) == []
    groups = [place for places in memory_directories(PROC) for place in places]
    assert [one for place in groups for one in place.glob(f"overspill-demo-{child.pid}-*")] == []


def _failing_demo(directory: Path, *options: str) -> str:
    argv = [sys.executable, "-c", WHOLE, "demo", "--dir", str(directory), *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_generated_graphs_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    told: list[tuple[str, int, int, str]] = []
    contents = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        (tmp_path / name).mkdir()
        paths = generate_graph(
            tmp_path / name, 20_000, seed=seed, report=lambda *event: told.append(event)
        )
        contents.append([Path(path).read_bytes() for path in paths.values()])
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]
    assert ("generate edges", 100_000, 100_000, "edges") in told


def test_generated_popularity_has_a_heavy_tail(tmp_path: Path) -> None:
    paths = generate_graph(tmp_path, 100_000, seed=0, report=lambda *_: None)
    sources, targets = np.load(paths["edges"])
    assert sources.min() >= 0 and max(sources.max(), targets.max()) < 100_000
    degrees = np.sort(np.bincount(targets, minlength=100_000))[::-1]
    assert degrees[:1000].sum() > 0.05 * degrees.sum()  # the top 1% take far more than their part
    assert degrees[0] > 50 * degrees.mean()
    labels = np.load(paths["y"])
    assert 0.75 < (labels[sources] == labels[targets]).mean() < 0.87
