"""Builds of what lies in memory: the same as from files, undone whole when an end gives up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch

import overspill as ov
from confined import PythonResult
from overspill.build.directory import MARKER_NAME
from overspill.errors import BuildFailedError, InputError

NODES, COUNT = 900, 120_000
EDGES = np.random.default_rng(1).integers(0, NODES, (2, COUNT))
X = np.random.default_rng(2).random((NODES, 17), np.float32)
BOTH: dict[str, Any] = {"layout": ("csc", "csr")}  # which reads the edges twice: they are kept


def payloads(out: Path) -> dict[str, bytes]:
    """Every array file of a dataset."""
    return {
        str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*.safetensors"))
    }


@pytest.fixture(scope="module")
def from_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    place = tmp_path_factory.mktemp("files")
    np.save(place / "e.npy", EDGES)
    np.save(place / "x.npy", X)
    ov.build_dataset(place / "out", edges=place / "e.npy", node_features={"x": place / "x.npy"})
    return payloads(place / "out")


def rows_in_chunks() -> Iterator[np.ndarray]:
    yield X[:0]
    for first in range(0, NODES, 100):
        yield X[first : first + 100]


def pairs() -> Iterator[Any]:
    yield [], []
    for first in range(0, COUNT, 7001):
        yield EDGES[0, first : first + 7001].astype(np.int16), EDGES[1, first : first + 7001]


def table() -> pa.Table:
    return pa.table({"src": EDGES[0].astype(np.int32), "dst": EDGES[1]})


KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "arrays": lambda: (EDGES, X),
    "arrays in another order": lambda: (EDGES.T, np.asfortranarray(X)),
    "pairs": lambda: ([EDGES[0], EDGES[1]], [X[:9], X[9:]]),
    "tensors with gaps": lambda: (
        torch.from_numpy(np.repeat(EDGES, 2, axis=1))[:, ::2],
        torch.from_numpy(np.repeat(X, 2, axis=0))[::2],
    ),
    "iterators": lambda: (pairs(), rows_in_chunks()),
    "batches": lambda: (iter(table().to_batches(5000)), X),
    "an iterator beside an array": lambda: (pairs(), X),
    "several": lambda: ([EDGES[:, :11], EDGES[:, 11:500], EDGES[:, 500:]], torch.from_numpy(X)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_as_from_files(tmp_path: Path, from_files: dict[str, bytes], kind: str) -> None:
    edges, x = KINDS[kind]()
    ov.build_dataset(tmp_path / "out", edges=edges, node_features={"x": x})
    assert payloads(tmp_path / "out") == from_files
    assert not (tmp_path / "out" / "scratch").exists()


def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    x = torch.randn(NODES, 3).to(torch.bfloat16)
    ds = ov.build_dataset(tmp_path / "out", edges=EDGES, node_features={"x": x, "y": x.T[0]})
    assert ds.features("x").dtype is torch.bfloat16
    assert torch.equal(ds.features("x"), x) and torch.equal(ds.features("y"), x[:, 0])


def test_an_error_names_the_argument(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        ov.build_dataset(tmp_path / "out", edges=EDGES, num_nodes=NODES - 1)
    error, place = caught.value, int(np.flatnonzero((NODES - 1 == EDGES).any(axis=0))[0])
    assert (error.path, error.row, error.value) == (
        "edges (sent from memory)",
        place,
        str(NODES - 1),
    )
    assert "edges (sent from memory)" in str(error) and "scratch" not in str(error)
    with pytest.raises(InputError, match=r"node_features\['x'\] \(sent from memory\) has 899 rows"):
        ov.build_dataset(
            tmp_path / "out", edges=EDGES, node_features={"x": X[:-1]}, num_nodes=NODES
        )


def test_an_id_out_of_range_in_a_late_chunk(tmp_path: Path) -> None:
    """Far behind the first chunk of the build, in a sequence that has no end."""
    closed = []

    def edges() -> Iterator[np.ndarray]:
        try:
            for _ in range(9):
                yield EDGES
            yield np.array([[1, 2, 3], [4, 5, NODES]])
            while True:
                yield EDGES
        finally:
            closed.append(True)

    with pytest.raises(InputError) as caught:
        ov.build_dataset(tmp_path / "out", edges=edges(), num_nodes=NODES)
    error = caught.value
    assert (error.path, error.row) == ("edges (sent from memory)", 9 * COUNT + 2)
    assert (error.column, error.value) == ("1", str(NODES))
    assert closed == [True] and not (tmp_path / "out").exists()


def test_a_null_is_refused_with_its_row(tmp_path: Path) -> None:
    big = 4873214862074861312
    batches = [pa.record_batch({"src": [big, 2], "dst": [1, 2]})] * 3
    batches.append(pa.record_batch({"src": [big, 5], "dst": [1, None]}))
    with pytest.raises(InputError, match="null") as caught:
        ov.build_dataset(tmp_path / "out", edges=iter(batches), ids="remap")
    error = caught.value
    assert (error.path, error.row, error.column) == ("edges (sent from memory)", 7, "dst")


def running_builds() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "overspill.build" in child.cmdline()]


@pytest.mark.parametrize(("count", "told"), [(0, {}), (40, {}), (9, BOTH)])
def test_a_generators_error_undoes_the_build(
    tmp_path: Path, count: int, told: dict[str, Any]
) -> None:
    class OwnError(Exception):
        pass

    def edges() -> Iterator[np.ndarray]:
        for _ in range(count):
            yield EDGES
        raise OwnError("after some")

    with pytest.raises(OwnError, match="after some") as caught:
        ov.build_dataset(tmp_path / "out", edges=edges(), **told)
    (note,) = caught.value.__notes__
    assert f"edges (sent from memory), after chunk {count - 1}" in note
    assert not (tmp_path / "out").exists() and not running_builds()


def test_a_builds_error_closes_the_generator(tmp_path: Path) -> None:
    """The second of two is refused by the build, while the third is still to be sent."""
    closed = []

    def endless() -> Iterator[np.ndarray]:
        try:
            while True:
                yield EDGES
        finally:
            closed.append(True)

    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "foreign").touch()
    with pytest.raises(ov.errors.OutputDirError):
        ov.build_dataset(tmp_path / "out", edges=endless())
    assert closed == [True]


@pytest.mark.parametrize("told", [{}, BOTH])
def test_the_process_is_killed_midway(tmp_path: Path, told: dict[str, Any]) -> None:
    closed = []

    def edges() -> Iterator[np.ndarray]:
        try:
            yield EDGES
            yield EDGES
            (child,) = running_builds()
            child.send_signal(signal.SIGKILL)
            while True:
                yield EDGES
        finally:
            closed.append(True)

    with pytest.raises(BuildFailedError, match="SIGKILL"):
        ov.build_dataset(tmp_path / "out", edges=edges(), **told)
    assert closed == [True]
    ds = ov.build_dataset(tmp_path / "out", edges=EDGES)  # starts over
    assert ds.num_edges == COUNT


INTERRUPTED = """
    import os, signal, sys, threading
    from pathlib import Path
    import numpy as np
    import overspill as ov

    out, kept = Path(sys.argv[1]), sys.argv[3] == "kept"
    edges = np.ones((2, 100_000), np.int64)
    # Both layouts read the edges, one after the other.
    layout = ("csc", "csr") if kept else "csc"

    def chunks():
        while not (out / "scratch" / ("sent/sent-0.npy" if kept else "edges.spool")).exists():
            yield edges
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
        while True:
            yield edges

    try:
        ov.build_dataset(out, edges=chunks(), layout=layout)
    except KeyboardInterrupt:
        print("interrupted", out.exists(), threading.active_count())
        print(ov.build_dataset(out, edges=edges).num_edges)
"""


# In a file, and without a guard: a process that imported it again would build again.
@pytest.mark.parametrize("place", ["kept", "read as they come"])
def test_the_caller_is_interrupted(
    tmp_path: Path, run_python: Callable[..., PythonResult], place: str
) -> None:
    arguments = (tmp_path / "out", "SIGINT", place)
    found = run_python(INTERRUPTED, arguments=arguments, timeout_s=60).check()
    assert found.stdout.split() == ["interrupted", "False", "1", "100000"]


@pytest.mark.parametrize("place", ["kept", "read as they come"])
def test_the_caller_is_killed(
    tmp_path: Path, run_python: Callable[..., PythonResult], place: str
) -> None:
    arguments = (tmp_path / "out", "SIGKILL", place)
    found = run_python(INTERRUPTED, arguments=arguments, timeout_s=60)
    assert found.returncode == -signal.SIGKILL
    # Undone by the process that was left alone, or left unfinished: never a dataset.
    assert not (tmp_path / "out" / "manifest.json").exists()
    ds = ov.build_dataset(tmp_path / "out", edges=EDGES)
    assert ds.num_edges == COUNT and not (tmp_path / "out" / MARKER_NAME).exists()


WITHOUT_GUARD = """
    import sys
    import numpy as np
    import overspill as ov
    print("started")
    chunks = (np.full((2, 1000), i) for i in range(5))
    print(ov.build_dataset(sys.argv[1], edges=chunks).num_edges)
"""


def test_a_script_on_stdin(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-", str(tmp_path / "out")],
        input=textwrap.dedent(WITHOUT_GUARD),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert found.stdout.split() == ["started", "5000"]


def test_a_thread_bound_source_works(tmp_path: Path) -> None:
    """A database connection refuses other threads than its own."""
    sqlite3 = pytest.importorskip("sqlite3")
    with sqlite3.connect(":memory:") as database:
        database.execute("create table edges (src integer, dst integer)")
        database.executemany("insert into edges values (?, ?)", EDGES.T[:5000].tolist())
        cursor = database.execute("select src, dst from edges")

        def chunks() -> Iterator[np.ndarray]:
            while rows := cursor.fetchmany(999):
                yield np.array(rows)

        ds = ov.build_dataset(tmp_path / "out", edges=chunks())
    database.close()
    assert ds.num_edges == 5000


def test_a_child_forked_meanwhile_does_not_keep_the_pipe_open(tmp_path: Path) -> None:
    forked = []

    def edges() -> Iterator[np.ndarray]:
        yield EDGES
        pid = os.fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
        forked.append(pid)
        yield EDGES
        raise ValueError("mine")

    try:
        with pytest.raises(ValueError, match="mine"):
            ov.build_dataset(tmp_path / "out", edges=edges())
    finally:
        os.kill(forked[0], signal.SIGKILL)
        os.waitpid(forked[0], 0)
    assert not (tmp_path / "out").exists()
