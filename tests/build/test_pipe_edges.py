"""Edges that stay in the pipe until they are read: who may have them so, and that all must come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naive import TINY, build_spec_here, read_built, require_naive
from overspill.build.construct import construct
from overspill.build.describe import Columns
from overspill.build.directory import BuildDirectory
from overspill.build.progress import Event
from overspill.build.sending.frames import (
    GAVE_UP,
    FrameReader,
    SenderGoneError,
    frame,
    note,
    npy_closing,
)
from overspill.build.sending.incoming import take_in
from overspill.build.sending.outgoing import Outgoing
from overspill.build.sending.pipe_edges import PipeEdges, read_once
from overspill.build.spec import NODE_TYPE, ArraySpec, BuildSpec, EdgeSpec, NodeSpec
from overspill.errors import FormatError, InputError
from sending import build_sent, framed, pipe_with

NAME = "edges (sent from memory)"
EDGES = np.random.default_rng(1).integers(0, 40, (101, 2))
CONTENTS = framed(note([{"stream": "stream:0", "name": NAME, "nbytes": None}]))
OPENING = framed(note({"kind": "pairs", "edge_axis": 0}))
CLOSING = framed(note(npy_closing(np.dtype(np.int64), EDGES.shape, fortran=False)))


def cut(data: bytes, step: int) -> bytes:
    return b"".join(framed(data[i : i + step]) for i in range(0, len(data), step)) + frame(0)


WHOLE = CONTENTS + OPENING + cut(EDGES.tobytes(), 1000) + CLOSING


def spec_of(out: Path, **told: Any) -> BuildSpec:
    known = {"edges": (EdgeSpec(paths=("stream:0",)),), "nodes": {NODE_TYPE: NodeSpec()}}
    return BuildSpec(**{"out": str(out), "streams": ("chunks",)} | known | told)


def reader_of(data: bytes) -> tuple[PipeEdges, int]:
    pipe = pipe_with(data)
    return PipeEdges(FrameReader(pipe), NAME), pipe


@pytest.mark.parametrize(
    ("told", "once"),
    [
        ({}, True),
        ({"layouts": ("csr",), "to_undirected": True, "duplicates": "count"}, True),
        ({"nodes": {NODE_TYPE: NodeSpec(ids="dense", count=9), "other": NodeSpec()}}, True),
        ({"edges": (EdgeSpec(paths=("stream:0",), arrays={"w": ArraySpec(paths=("w",))}),)}, True),
        ({"layouts": ("csc", "csr")}, False),
        ({"order": "degree"}, False),
        ({"nodes": {NODE_TYPE: NodeSpec(ids="remap")}}, False),
        ({"nodes": {NODE_TYPE: NodeSpec(ids="text")}}, False),
        ({"edges": (EdgeSpec(paths=("stream:0", "stream:0")),)}, False),
        ({"edges": (EdgeSpec(paths=("/e.npy",)),)}, False),
        ({"edges": (EdgeSpec(paths=()),)}, False),
        ({"edges": (EdgeSpec(paths=("stream:0",)), EdgeSpec(paths=("stream:1",)))}, False),
    ],
)
def test_who_reads_once(told: dict[str, Any], once: bool) -> None:
    assert read_once(spec_of(Path("/out"), **told)) == ("stream:0" if once else None)


def test_either_ends_ids_count() -> None:
    edges = (EdgeSpec(type=("a", "to", "b"), paths=("stream:0",)),)
    for ids in (("remap", "dense"), ("dense", "remap")):
        nodes = {name: NodeSpec(ids=one) for name, one in zip("ab", ids, strict=True)}  # type: ignore[arg-type]
        assert read_once(spec_of(Path("/out"), edges=edges, nodes=nodes)) is None


@pytest.mark.parametrize("step", [1, 7, 16, 24, 1000, 1616])
@pytest.mark.parametrize("most", [1, 7, 100, 101, 102])
def test_pairs_in_frames_and_chunks_of_any_size(step: int, most: int) -> None:
    reader, pipe = reader_of(cut(EDGES.tobytes(), step) + CLOSING)
    found, alive = [], []
    for chunk in reader.chunks(most):
        alive = [*alive, chunk][-3:]
        assert chunk.first == sum(map(len, found)) and len(chunk.sources) <= most
        found.append(np.stack([chunk.sources, chunk.targets], 1))
        assert chunk.bytes_done == reader.nbytes == 16 * (chunk.first + len(found[-1]))
        for before, copied in zip(alive, found[-len(alive) :], strict=True):
            assert np.array_equal(before.sources, copied[:, 0])
    os.close(pipe)
    assert np.array_equal(np.concatenate(found), EDGES)
    assert reader.locate(77) == 77 and reader.count is None and reader.path == NAME


def test_no_edges() -> None:
    closing = framed(note(npy_closing(np.dtype(np.int64), (0, 2), fortran=False)))
    reader, pipe = reader_of(frame(0) + closing)
    assert list(reader.chunks(7)) == []
    os.close(pipe)


@pytest.mark.parametrize("count", [0, 100, 102])
def test_another_number_than_was_told(count: int) -> None:
    closing = framed(note(npy_closing(np.dtype(np.int64), (count, 2), fortran=False)))
    reader, pipe = reader_of(cut(EDGES.tobytes(), 99) + closing)
    with pytest.raises(
        FormatError, match=f"1616 bytes .* \\({count}, 2\\).*remedy: build again; see"
    ):
        list(reader.chunks(7))
    os.close(pipe)


def test_a_pipe_is_read_once_and_has_no_columns() -> None:
    reader, pipe = reader_of(cut(EDGES.tobytes(), 99) + CLOSING)
    assert sum(len(chunk.sources) for chunk in reader.chunks(50)) == 101
    with pytest.raises(FormatError, match=r"twice.*remedy: report"):
        next(reader.chunks(50))
    with pytest.raises(InputError, match="no columns by name") as caught:
        reader.rows(("w",))
    assert caught.value.path == NAME
    os.close(pipe)


def test_a_build_from_the_pipe(tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "out")
    pipe = pipe_with(WHOLE)
    construct(spec, TINY, inputs=None, send=lambda _: None, pipe=pipe)
    built = read_built(tmp_path / "out")
    require_naive(built, *EDGES.T, int(EDGES.max()) + 1)
    assert built.manifest.sources == [{"path": NAME, "nbytes": EDGES.nbytes}]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pipe)


@pytest.mark.parametrize("gave_up", [False, True])
def test_what_ends_early_is_never_taken_for_the_whole(tmp_path: Path, gave_up: bool) -> None:
    """Cut anywhere; a sender that gives up does so between two frames."""
    between = len(CONTENTS + OPENING) + 1008
    cuts = [between, len(WHOLE) - len(CLOSING)] if gave_up else range(0, len(WHOLE), 41)
    for place in cuts:
        data = WHOLE[:place] + (GAVE_UP.to_bytes(8, "little") if gave_up else b"")
        pipe = pipe_with(data)
        with pytest.raises(InputError, match="ended early") as caught:
            construct(spec_of(tmp_path / "out"), TINY, inputs=None, send=lambda _: None, pipe=pipe)
        assert isinstance(caught.value.__cause__, SenderGoneError)
        assert not (tmp_path / "out").exists()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pipe)


def test_the_pipe_stays_open_while_edges_are_in_it(tmp_path: Path) -> None:
    spec, pipe = spec_of(tmp_path / "out"), pipe_with(WHOLE)
    with BuildDirectory(spec.out) as directory:
        with take_in(spec, directory, pipe) as arrived:
            os.fstat(pipe)
            assert arrived.spec.edges == spec.edges and not arrived.names
            assert list(arrived.edges.readers) == ["stream:0"]
            assert not (tmp_path / "out/scratch").exists()
            arrived.remove()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(pipe)


@pytest.mark.parametrize("kind", ["pairs", "npy"])
def test_all_else_is_kept(tmp_path: Path, kind: str) -> None:
    """Pairs that are read twice, and arrays of any other order."""
    opening = framed(note({"kind": kind, "edge_axis": 0}))
    data = CONTENTS + opening + cut(EDGES.tobytes(), 1000) + CLOSING
    spec = spec_of(tmp_path / "out")
    if kind == "pairs":
        spec = replace(spec, layouts=("csc", "csr"))
    with (
        BuildDirectory(spec.out) as directory,
        take_in(spec, directory, pipe_with(data)) as arrived,
    ):
        (path,) = arrived.names
        assert np.array_equal(np.load(path), EDGES)
        assert arrived.edges.axes == {path: 0} and not arrived.edges.readers


def test_pairs_that_others_follow_are_kept(tmp_path: Path) -> None:
    rows = framed(note({"kind": "npy", "edge_axis": None})) + cut(EDGES.tobytes(), 1000) + CLOSING
    contents = [{"stream": f"stream:{n}", "name": str(n), "nbytes": None} for n in range(2)]
    first = OPENING + cut(EDGES.tobytes(), 1000) + CLOSING
    nodes = {NODE_TYPE: NodeSpec(arrays={"x": ArraySpec(paths=("stream:1",))})}
    spec = spec_of(tmp_path / "out", nodes=nodes, streams=("chunks", "chunks"))
    pipe = pipe_with(framed(note(contents)) + first + rows)
    with BuildDirectory(spec.out) as directory, take_in(spec, directory, pipe) as arrived:
        assert len(arrived.names) == 2 and not arrived.edges.readers


def test_iterators_are_sent_last() -> None:
    """So that edges from one need not be kept while arrays follow; among themselves in order."""
    sent: list[bytes] = []

    class Outlet:
        def put(self, data: Any) -> None:
            sent.append(bytes(data))

        end_stream = give_up = lambda self: None

    streams, x = Outgoing(), np.ones((4, 3))
    for value, what in [
        (iter([EDGES]), "edges"),
        (x, "node_features['x']"),
        (iter([x]), "node_features['y']"),
        (EDGES, "edges"),
    ]:
        streams.add(value, what=what)
    streams.send(Outlet(), {})  # type: ignore[arg-type]
    order = [f"stream:{number}".encode() for number in (1, 3, 0, 2)]
    assert [sent[0].index(stream) for stream in order] == sorted(map(sent[0].index, order))
    kinds = [part for part in sent if part.startswith(b'{"kind"')]
    assert [b"pairs" in kind for kind in kinds] == [False, False, True, False]


def chunks(step: int = 9) -> Iterator[np.ndarray]:
    for first in range(0, len(EDGES), step):
        yield EDGES[first : first + step].T


def stored(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*.safetensors")}


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({}, False),
        ({"num_nodes": 60, "ids": "dense"}, False),
        ({"to_undirected": True, "duplicates": "drop", "self_loops": "drop"}, False),
        ({"layout": "csr", "edge_ids": True, "sort_within_row": False}, False),
        ({"layout": ("csc", "csr")}, True),
        ({"ids": "remap"}, True),
        ({"order": "degree"}, True),
    ],
)
def test_an_iterator_is_kept_only_where_its_edges_are_read_again(
    tmp_path: Path, told: dict[str, Any], kept: bool
) -> None:
    found: list[Path] = []

    def look(_: Event) -> None:
        found.extend((tmp_path / "out" / "scratch").rglob("sent-*"))

    np.save(tmp_path / "e.npy", EDGES)
    build_spec_here(tmp_path / "wanted", edges=tmp_path / "e.npy", **told)
    build_sent(tmp_path / "out", edges=chunks(), on_event=look, **told)
    assert stored(tmp_path / "out") == stored(tmp_path / "wanted")
    assert bool(found) == kept


def test_arrays_beside_an_iterator_of_edges(tmp_path: Path) -> None:
    weights = np.random.default_rng(3).random(len(EDGES))
    x = np.random.default_rng(4).random((int(EDGES.max()) + 1, 3))
    for name, array in (("e", EDGES), ("w", weights), ("x", x)):
        np.save(tmp_path / f"{name}.npy", array)
    files = {name: {name: tmp_path / f"{name}.npy"} for name in "wx"}
    told = {"edge_features": files["w"], "node_features": files["x"]}
    build_spec_here(tmp_path / "wanted", edges=tmp_path / "e.npy", **told)
    for number, w in enumerate((weights, iter(np.array_split(weights, 5)))):
        told = {"edge_features": {"w": w}, "node_features": {"x": x}}
        build_sent(tmp_path / str(number), edges=chunks(), **told)
        assert stored(tmp_path / str(number)) == stored(tmp_path / "wanted")
    with pytest.raises(InputError, match=r"edges \(sent from memory\) has no columns by name"):
        build_sent(tmp_path / "o", edges=chunks(), edge_features={"w": Columns("w")})
    with pytest.raises(InputError, match="100 rows"):
        build_sent(tmp_path / "o", edges=chunks(), edge_features={"w": weights[1:]})
    assert not (tmp_path / "o").exists()


TWO = np.array([[0, 1], [2, 3]])
BOTH: dict[str, Any] = {"layout": ("csc", "csr")}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: iter([TWO]), {"edge_axis": 1}),
        (lambda: iter([(TWO[0], TWO[1])]), {}),
        (lambda: iter([(TWO[0], TWO[1])]), BOTH),
        (lambda: iter([TWO[:, :1], TWO[:, 1:]]), BOTH | {"edge_axis": 1}),
        (lambda: (TWO[0], TWO[1]), {}),
        (lambda: (TWO[0], TWO[1]), {"edge_axis": 1}),
    ],
)
def test_two_edges_are_never_taken_for_another_shape(
    tmp_path: Path, make: Callable[[], Any], told: dict[str, Any]
) -> None:
    build_sent(tmp_path / "out", edges=make(), **told)
    require_naive(read_built(tmp_path / "out"), *TWO, 4)


@pytest.mark.parametrize(("wrong", "told"), [(60, {"num_nodes": 60}), (-5, {}), (2**62, {})])
def test_an_id_out_of_range_names_its_row(tmp_path: Path, wrong: int, told: dict[str, Any]) -> None:
    late = (pairs for pairs in [*chunks(), np.array([[1, 2, wrong], [3, 4, 5]]), *chunks()])
    with pytest.raises(InputError) as caught:
        build_sent(tmp_path / "out", edges=late, **told)
    error = caught.value
    assert (error.path, error.row, error.column) == (NAME, len(EDGES) + 2, "0")
    assert error.value == str(wrong) and not (tmp_path / "out").exists()


def test_nothing_came(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no edges") as caught:
        build_sent(tmp_path / "out", edges=iter([]))
    assert caught.value.path == NAME
    build_sent(tmp_path / "out", edges=iter([]), num_nodes=3)
    require_naive(read_built(tmp_path / "out"), [], [], 3)


def test_progress_of_what_has_no_announced_size(tmp_path: Path) -> None:
    events: list[Event] = []
    build_sent(tmp_path / "out", edges=chunks(), on_event=events.append)
    done = [event["done"] for event in events if event["phase"] == "partition"]
    assert done == sorted(done) and done[-1] == EDGES.nbytes
