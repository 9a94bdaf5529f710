"""The build's own process: its result, its errors, its end and its parent's."""

from __future__ import annotations

import math
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from naive import read_built, require_naive
from overspill.build import describe_build, run_build
from overspill.build.__main__ import PARENT_GONE
from overspill.build.child import plan_only
from overspill.build.describe import Columns
from overspill.build.directory import MARKER_NAME
from overspill.build.journal import finished_steps
from overspill.build.wire import decode_error, encode_error, name_error
from overspill.errors import (
    BuildFailedError,
    DiskRefusedError,
    FormatError,
    InputError,
    NoRoomError,
    OutputDirError,
    OverspillError,
)
from overspill.linux.blocks import reserve_blocks
from overspill.linux.mounts import free_disk_bytes
from overspill.settings import child_environment
from overspill.storage.manifest import read_manifest

EDGES = np.random.default_rng(8).integers(0, 1000, (2, 50_000))
GIB = 1 << 30


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    np.save(tmp_path / "e.npy", EDGES)
    return tmp_path / "e.npy"


def test_events_and_summary(tmp_path: Path, edges: Path) -> None:
    events: list[dict[str, Any]] = []
    summary = run_build(
        describe_build(tmp_path / "out", edges=edges, memory_limit="300MiB"),
        on_event=events.append,
    )
    require_naive(read_built(tmp_path / "out"), *EDGES, int(EDGES.max()) + 1)
    kinds = [event["event"] for event in events]
    assert kinds[0] == "plan" and kinds[-1] == "summary"
    assert set(kinds[1:-1]) == {"progress"}
    phases = list(dict.fromkeys(e["phase"] for e in events if e["event"] == "progress"))
    assert phases == ["partition", "build rows", "publish"] == list(summary["phase_seconds"])
    last = [e for e in events if e.get("phase") == "build rows"][-1]
    assert last["done"] == last["total"] == 50_000 and last["unit"] == "edges"
    assert (summary["edges"], summary["nodes"]) == (50_000, int(EDGES.max()) + 1)
    assert summary["edges_per_second"] > 0
    assert 0 < summary["peak_anon_bytes"] <= summary["projected_bytes"]
    assert summary["projected_bytes"] <= summary["allowed_bytes"] == 300 << 20


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
def test_the_process_imports_no_torch_and_only_what_it_uses(
    tmp_path: Path, edges: Path, kind: str
) -> None:
    if kind == "csv":
        edges = tmp_path / "e.csv"
        edges.write_text("src,dst\n0,1\n")
    options: dict[str, Any] = {"edges": edges}
    if kind == "parquet":
        options["edges"] = tmp_path / "e.parquet"
        columns = {"src": [0, 1], "dst": [1, 1], "b": [True, False], "x": [[1.5], [2.5]]}
        pq.write_table(pa.table(columns), options["edges"])
        options["edge_features"] = {name: Columns(name) for name in ("b", "x")}
    modules = run_build(describe_build(tmp_path / "out", **options))["modules"]
    assert not {"torch", "torch_geometric", "tqdm", "hypothesis", "pandas"} & set(modules)
    assert ("pyarrow" in modules) == (kind != "npy")


def test_an_error_arrives_as_the_same_type_with_its_fields(tmp_path: Path, edges: Path) -> None:
    with pytest.raises(InputError) as caught:
        run_build(describe_build(tmp_path / "out", edges=edges, num_nodes=1))
    error = caught.value
    assert error.path == str(edges) and error.row is not None and error.value is not None
    assert not (tmp_path / "out").exists()


def test_a_limit_that_is_too_small(tmp_path: Path, edges: Path) -> None:
    spec = describe_build(tmp_path / "out", edges=edges, memory_limit="10MiB")
    with pytest.raises(NoRoomError) as caught:
        run_build(spec)
    assert caught.value.available_bytes == 10 << 20 and not (tmp_path / "out").exists()
    needed = caught.value.needed_bytes
    assert needed is not None
    # A process's base differs by some pages from run to run.
    run_build(describe_build(tmp_path / "out", edges=edges, memory_limit=needed + (4 << 20)))


@pytest.mark.parametrize(
    "error",
    [
        InputError("bad", path="p", row=3, column="c", value="v", remedy="r"),
        DiskRefusedError("full", path="p", errno=28, needed_bytes=5, available_bytes=2),
        OutputDirError("busy"),
    ],
)
def test_errors_cross_whole(error: OverspillError) -> None:
    arrived = decode_error(encode_error(error))
    assert type(arrived) is type(error) and str(arrived) == str(error)
    assert vars(arrived) | {"errno": arrived.errno} == vars(error) | {"errno": error.errno}


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (OSError(5, "it broke", "/a/file"), DiskRefusedError, "/a/file: it broke"),
        (OSError(24, "too many open files"), DiskRefusedError, "/out: too many open files"),
        (OSError("no number"), DiskRefusedError, "/out: no number"),
        (MemoryError("1 GiB for an array"), NoRoomError, "1 GiB for an array"),
        (MemoryError(), NoRoomError, "no memory; path: /out"),
        (OutputDirError("busy"), OutputDirError, "busy"),
    ],
)
def test_what_the_system_refuses_gets_a_name(
    error: OSError | MemoryError, kind: type[OverspillError], told: str
) -> None:
    named = name_error(error, path="/out")
    assert type(named) is kind and told in str(named)
    if isinstance(error, OSError):
        assert named.errno == error.errno


def test_a_name_that_is_too_long_is_no_failed_build(tmp_path: Path, edges: Path) -> None:
    out = tmp_path / ("long" * 100)
    with pytest.raises(DiskRefusedError, match="too long") as caught:
        run_build(describe_build(out, edges=edges))
    assert caught.value.errno == 36 and caught.value.path == str(out)


@pytest.mark.parametrize("kind", ["Nonsense", "annotations", "format_bytes", None])
def test_an_unknown_error_is_a_failed_build(kind: str | None) -> None:
    assert type(decode_error({"type": kind, "message": "m"})) is BuildFailedError


def kill_own_build(_: dict[str, Any]) -> None:
    """Kill the one child of this process that is a build."""
    for task in Path("/proc/self/task").iterdir():
        for word in (task / "children").read_text().split():
            if b"overspill.build" in Path(f"/proc/{word}/cmdline").read_bytes():
                os.kill(int(word), signal.SIGKILL)


def endless_npy(path: Path, shape: tuple[int, ...]) -> Path:
    """Gigabytes of zeros that take no disk: what reads them is always stopped on the way."""
    with path.open("wb") as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 8 * math.prod(shape))
    return path


@pytest.mark.parametrize("phase", ["collect ids", "partition", "build rows", "copy node arrays"])
def test_a_killed_process_leaves_an_unfinished_build(
    tmp_path: Path, edges: Path, phase: str
) -> None:
    options: dict[str, Any] = {"edges": edges}
    if phase in ("collect ids", "partition"):
        options["edges"] = endless_npy(tmp_path / "endless.npy", (2, GIB // 4))
        options["ids"] = "remap" if phase == "collect ids" else "dense"
    elif phase == "build rows":
        options["num_nodes"] = GIB // 2  # four gibibytes of row pointers
    else:
        options["node_features"] = {"x": endless_npy(tmp_path / "x.npy", (1000, GIB // 2000))}

    def kill(event: dict[str, Any]) -> None:
        if event.get("phase") == phase:
            kill_own_build(event)

    with pytest.raises(BuildFailedError, match="SIGKILL"):
        run_build(describe_build(tmp_path / "out", **options), on_event=kill)
    assert (tmp_path / "out" / MARKER_NAME).exists()
    with pytest.raises(FormatError):
        read_manifest(tmp_path / "out")
    run_build(describe_build(tmp_path / "out", edges=edges))
    require_naive(read_built(tmp_path / "out"), *EDGES, 1000)


def test_an_interrupted_parent_ends_the_process(tmp_path: Path, edges: Path) -> None:
    def interrupt(_: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    endless = endless_npy(tmp_path / "endless.npy", (2, GIB // 4))
    with pytest.raises(KeyboardInterrupt) as caught:
        run_build(describe_build(tmp_path / "out", edges=endless), on_event=interrupt)
    # The plan is told before anything is made, but the process goes on until it finds that its
    # parent has: it may have made its directory by then.
    [note] = caught.value.__notes__
    assert re.match(r"(nothing was left in|.* holds an unfinished build of) ", note)
    assert note.endswith(": the same call starts over")
    # The leak check sees that no process is left; and the lock on the directory is free again.
    run_build(describe_build(tmp_path / "out", edges=edges))
    require_naive(read_built(tmp_path / "out"), *EDGES, 1000)


def test_an_interrupt_says_what_is_left_and_how_to_go_on(tmp_path: Path, edges: Path) -> None:
    options = {"edges": edges, "node_features": {"x": tmp_path / "x.npy"}, "num_nodes": 1000}
    endless_npy(tmp_path / "x.npy", (1000, GIB // 2000))

    begun: list[str] = []

    def build_until(phase: str, *, resume: bool = False) -> str:
        def interrupt(event: dict[str, Any]) -> None:
            begun.append(event.get("phase", ""))
            if begun[-1] == phase:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught:
            spec = describe_build(tmp_path / "out", **options, resume=resume)
            run_build(spec, on_event=interrupt)
        [note] = caught.value.__notes__
        return str(note)

    assert "no step of which was finished: the same call starts over" in build_until("partition")
    told = build_until("copy node arrays")
    assert "with 1 finished step: the same call with resume=True goes on" in told
    assert "iB" in told and str(tmp_path / "out") in told
    begun.clear()
    assert "with 1 finished step" in build_until("copy node arrays", resume=True)
    assert "partition" not in begun


def test_the_plan_alone_is_told_and_then_refused_like_the_build(
    tmp_path: Path, edges: Path
) -> None:
    spec = describe_build(tmp_path / "out", edges=edges, memory_limit="300MiB")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    told: list[dict[str, Any]] = []
    with pytest.raises(OutputDirError, match=r"thesis\.tex"):
        plan_only(spec, on_event=told.append)
    [plan] = told
    assert plan["event"] == "plan" and plan["allowed_bytes"] == 300 << 20
    assert plan["edges"] == 50_000 and plan["buckets"] > 1
    assert [one["phase"] for one in plan["passes"]] == ["partition", "build rows"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


KILLED_PARENT = """
import os, signal, sys
from overspill.build import describe_build, run_build

def tell(event):
    if event.get("phase") != "partition":
        return
    [build] = [int(word) for task in os.listdir("/proc/self/task")
               for word in open(f"/proc/self/task/{task}/children").read().split()]
    os.kill(build, signal.SIGSTOP)
    forked = 0
    if sys.argv[3] == "forked":
        forked = os.fork()
        if forked == 0:
            os.close(1)
            signal.pause()
    print(build, forked, flush=True)
    signal.pause()

run_build(describe_build(sys.argv[1], edges=sys.argv[2]), on_event=tell)
"""


@pytest.mark.parametrize("also", ["alone", "forked"])
def test_a_killed_parent_takes_its_build_with_it(tmp_path: Path, also: str) -> None:
    """Also where something that the parent forked holds the other end of the build's stdin."""
    endless_npy(tmp_path / "e.npy", (2, GIB // 4))
    argv = [sys.executable, "-c", KILLED_PARENT, tmp_path / "out", tmp_path / "e.npy", also]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, env=child_environment())
    assert parent.stdout is not None
    build, forked = (int(word) for word in parent.stdout.readline().split())
    end = os.pidfd_open(build)
    try:
        parent.kill()
        parent.wait()
        os.kill(build, signal.SIGCONT)
        waiting = select.poll()
        waiting.register(end, select.POLLIN)
        assert waiting.poll(120_000), "the build outlived its parent"
    finally:
        os.close(end)
        parent.stdout.close()
        if forked:
            os.kill(forked, signal.SIGKILL)
    assert (tmp_path / "out" / MARKER_NAME).exists()
    with pytest.raises(FormatError):
        read_manifest(tmp_path / "out")


def test_a_process_that_nobody_hears_ends_and_undoes_nothing(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    script = """
    import os, sys
    from overspill.build.__main__ import _sender
    from overspill.build.directory import BuildDirectory

    reading, writing = os.pipe()
    send = _sender(os.fdopen(writing, "w"))
    with BuildDirectory(sys.argv[1]) as directory:
        directory.finish("one", 1)
        send({"event": "progress"})
        os.close(reading)
        send({"event": "progress"})
    """
    found = run_python(script, arguments=[tmp_path / "out"])
    assert found.returncode == PARENT_GONE, found.stderr
    assert finished_steps(tmp_path / "out") == 1


def test_a_script_on_stdin_without_a_main_guard(tmp_path: Path, edges: Path) -> None:
    script = (
        "from overspill.build import describe_build, run_build\n"
        f"run_build(describe_build({str(tmp_path / 'out')!r}, edges={str(edges)!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-"],
        input=script,
        text=True,
        capture_output=True,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    require_naive(read_built(tmp_path / "out"), *EDGES, int(EDGES.max()) + 1)


def test_a_module_in_the_working_directory_is_not_imported(
    tmp_path: Path, edges: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    run_build(describe_build("out", edges=edges))


def test_a_process_that_cannot_start_says_why(
    tmp_path: Path, edges: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = describe_build(tmp_path / "out", edges=edges)
    monkeypatch.setattr("overspill.build.child._LEAN", {"PYTHONHOME": "/nonexistent"})
    with pytest.raises(BuildFailedError, match="status 1"):
        run_build(spec)


@pytest.mark.requires("loop_device")
@pytest.mark.parametrize("free", [1_000_000, 10_000_000, 18_000_000])
@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_a_full_disk_leaves_nothing(
    tmp_path: Path, loop_disk: Callable[[int], Path], free: int, kind: str
) -> None:
    """Told at once where the number of edges is known, else wherever the disk ends."""
    disk = loop_disk(40 << 20)
    with (disk / "ballast").open("wb") as ballast:
        held = free_disk_bytes(disk) - free
        reserve_blocks(ballast.fileno(), held, path=str(disk))
    pairs = np.random.default_rng(1).integers(0, 10**6, (10**6, 2))
    source = tmp_path / f"big.{kind}"
    if kind == "npy":
        np.save(source, pairs)
    else:
        source.write_text("src,dst\n" + "\n".join(f"{s},{t}" for s, t in pairs.tolist()))
    events: list[dict[str, Any]] = []
    with pytest.raises(DiskRefusedError) as caught:
        run_build(describe_build(disk / "out", edges=source), on_event=events.append)
    error = caught.value
    assert error.errno == 28 and error.needed_bytes and error.available_bytes is not None
    assert error.remedy and not (disk / "out").exists()
    phases = {event.get("phase") for event in events} - {None}
    if free == 18_000_000:  # the spool fits, the rows do not
        assert phases == {"partition", "build rows"}
    else:
        # Of lines nobody knows the number, but that they are not as few as that.
        assert phases == ({"partition"} if kind == "csv" and free == 10_000_000 else set())
