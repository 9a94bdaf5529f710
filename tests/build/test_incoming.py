"""The build's end of the pipe: files with their headers last, errors that name the argument."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.build.directory import BuildDirectory
from overspill.build.readers.npy import bits_dtype, read_npy_header
from overspill.build.readers.source import SourceFile
from overspill.build.sending.frames import (
    GAVE_UP,
    NPY_HEADER_BYTES,
    frame,
    note,
    npy_closing,
    npy_header,
)
from overspill.build.sending.incoming import Arrived, pipe_of, put_names, take_in, without_streams
from overspill.build.sending.outgoing import Outgoing
from overspill.build.spec import ArraySpec, BuildSpec, EdgeSpec, NodeSpec
from overspill.errors import DiskRefusedError, FormatError, InputError
from sending import framed, pipe_with, taken_in

EDGES = np.random.default_rng(4).integers(0, 1000, (2, 200_000))


NAME = "edges (sent from memory)"
CONTENTS = framed(note([{"stream": "stream:0", "name": NAME, "nbytes": 32}]))
OPENING = framed(note({"kind": "npy", "edge_axis": None}))
DATA = framed(np.arange(4).tobytes())
CLOSING = framed(note(npy_closing(np.dtype(np.int64), (2, 2), fortran=False)))
WHOLE = CONTENTS + OPENING + DATA + frame(0) + CLOSING


@pytest.fixture
def spec(tmp_path: Path) -> BuildSpec:
    return BuildSpec(
        out=str(tmp_path / "out"), edges=(EdgeSpec(paths=("stream:0",)),), streams=("npy",)
    )


def test_a_stream_as_written_by_hand(spec: BuildSpec) -> None:
    with (
        BuildDirectory(spec.out) as directory,
        take_in(spec, directory, pipe_with(WHOLE)) as arrived,
    ):
        (path,) = arrived.spec.edges[0].paths
        assert arrived.names == {path: "edges (sent from memory)"} and arrived.spec.streams == ()
        assert np.load(path).tolist() == [[0, 1], [2, 3]]
        assert read_npy_header(SourceFile.check(path)).offset == NPY_HEADER_BYTES
        assert Path(path).parent == Path(spec.out) / "scratch" / "sent"
        arrived.remove()
        assert not Path(path).parent.exists()
        arrived.remove()


@pytest.mark.parametrize("cut", [0, 5, len(CONTENTS), len(CONTENTS + OPENING), -1])
@pytest.mark.parametrize("gave_up", [False, True])
def test_what_ends_early_is_never_taken_for_the_whole(
    spec: BuildSpec, cut: int, gave_up: bool
) -> None:
    data = WHOLE[:cut]
    if gave_up and cut in (0, len(CONTENTS), len(CONTENTS + OPENING)):
        data += GAVE_UP.to_bytes(8, "little")
    with (
        BuildDirectory(spec.out) as directory,
        pytest.raises(InputError, match="ended early"),
    ):
        take_in(spec, directory, pipe_with(data))
    assert not Path(spec.out).exists()


def test_every_byte_counts(spec: BuildSpec) -> None:
    """Cut anywhere at all, nothing is taken in; and the pipe is closed each time."""
    for cut in range(0, len(WHOLE), 7):
        with BuildDirectory(spec.out) as directory:
            pipe = pipe_with(WHOLE[:cut])
            with pytest.raises(InputError):
                take_in(spec, directory, pipe)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(pipe)
            assert not list(Path(spec.out).rglob("sent-*"))


@pytest.mark.parametrize("shape", [(2, 1), (2, 3), (5,)])
def test_a_shape_that_is_not_what_came(spec: BuildSpec, shape: tuple[int, ...]) -> None:
    closing = framed(note(npy_closing(np.dtype(np.int64), shape, fortran=False)))
    with BuildDirectory(spec.out) as directory, pytest.raises(FormatError, match="32 bytes"):
        take_in(spec, directory, pipe_with(CONTENTS + OPENING + DATA + frame(0) + closing))


def test_data_in_many_small_frames(spec: BuildSpec) -> None:
    parts = b"".join(framed(bytes([byte])) for byte in np.arange(4).tobytes())
    with (
        BuildDirectory(spec.out) as directory,
        take_in(
            spec, directory, pipe_with(CONTENTS + OPENING + parts + frame(0) + CLOSING)
        ) as found,
    ):
        assert np.load(found.spec.edges[0].paths[0]).tolist() == [[0, 1], [2, 3]]


def test_nothing_sent_touches_no_pipe(tmp_path: Path) -> None:
    spec = BuildSpec(out=str(tmp_path / "out"), edges=(EdgeSpec(paths=("/a.npy",)),))
    with BuildDirectory(spec.out) as directory, take_in(spec, directory, -1) as arrived:
        assert arrived.spec is spec and not arrived.names
        assert not (tmp_path / "out" / "scratch").exists()


def test_each_stream_takes_its_place(tmp_path: Path) -> None:
    streams = Outgoing()
    for number in range(4):
        streams.add(np.full((2, 3), number), what="edges" if number < 2 else "node_features['x']")
    features = {"x": ArraySpec(paths=("stream:2",)), "y": ArraySpec(paths=("/y.npy", "stream:3"))}
    spec = BuildSpec(
        out=str(tmp_path / "out"),
        edges=(
            EdgeSpec(
                paths=("stream:1", "/e.npy", "stream:0"),
                arrays={"w": ArraySpec(paths=("stream:3",), columns=("w",), key="k", fill=1.5)},
            ),
        ),
        nodes={"node": NodeSpec(count=4, ids="remap", arrays=features)},
        streams=streams.kinds,
    )
    with taken_in(tmp_path / "out", streams, spec=spec) as arrived:
        held = dict(enumerate(arrived.names))
        (edge,) = arrived.spec.edges
        assert edge.paths == (held[1], "/e.npy", held[0])
        assert edge.arrays["w"] == ArraySpec(paths=(held[3],), columns=("w",), key="k", fill=1.5)
        node = arrived.spec.nodes["node"]
        assert node.arrays["x"].paths == (held[2],)
        assert node.arrays["y"].paths == ("/y.npy", held[3])
        assert (node.count, node.ids) == (4, "remap")
        for number, path in held.items():
            assert (np.load(path) == number).all()


def test_what_can_be_looked_at_before_anything_was_sent() -> None:
    stored, sent = ArraySpec(paths=("/x.npy",)), ArraySpec(paths=("/y.npy", "stream:1"))
    of_edges = ArraySpec(columns=("w",))
    spec = BuildSpec(
        out="/out",
        edges=(
            EdgeSpec(paths=("stream:0", "/e.npy"), arrays={"a": of_edges, "b": sent}),
            EdgeSpec(type=("a", "to", "b"), paths=("stream:0",), arrays={"c": of_edges}),
        ),
        nodes={"node": NodeSpec(arrays={"x": stored, "y": sent}), "a": NodeSpec(), "b": NodeSpec()},
        streams=("npy", "npy"),
    )
    found = without_streams(spec)
    assert [edge.paths for edge in found.edges] == [("/e.npy",), ()] and found.streams == ()
    assert found.edges[0].arrays == {"a": of_edges} and found.edges[1].arrays == {}
    assert found.nodes == {"node": NodeSpec(arrays={"x": stored}), "a": NodeSpec(), "b": NodeSpec()}
    assert without_streams(found) == found


def test_the_pipe_among_the_arguments() -> None:
    assert pipe_of(["overspill.build", "7", "--streams", "12"]) == 12
    assert pipe_of(["overspill.build", "7"]) == pipe_of([]) == -1


def test_progress_counts_what_was_announced_and_what_was_not(tmp_path: Path) -> None:
    streams = Outgoing()
    streams.add(EDGES, what="edges")
    streams.add((EDGES[:, i : i + 5000] for i in range(0, 200_000, 5000)), what="edges")
    told: list[tuple[int, int]] = []
    with taken_in(tmp_path / "out", streams, progress=lambda *now: told.append(now)):
        pass
    assert told[-1] == (2 * EDGES.nbytes, EDGES.nbytes) and told == sorted(told)
    assert len(told) > 4


def test_a_disk_that_is_too_small_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "overspill.build.sending.incoming.free_disk_bytes", lambda _: EDGES.nbytes - 1
    )
    streams = Outgoing()
    streams.add(EDGES, what="edges")
    with pytest.raises(DiskRefusedError) as caught, taken_in(tmp_path / "out", streams):
        pass
    error = caught.value
    assert (error.needed_bytes, error.available_bytes) == (EDGES.nbytes, EDGES.nbytes - 1)
    assert error.errno == errno.ENOSPC and not (tmp_path / "out").exists()


@pytest.mark.requires("loop_device")
def test_a_disk_that_fills_up(loop_disk: Any) -> None:
    disk = loop_disk(16 << 20)
    streams = Outgoing()
    streams.add((EDGES for _ in range(20)), what="edges")
    with pytest.raises(DiskRefusedError) as caught, taken_in(disk / "out", streams):
        pass
    assert caught.value.errno == errno.ENOSPC and not (disk / "out").exists()


def named(names: dict[str, str]) -> Arrived:
    return Arrived(BuildSpec(out="/data/out"), BuildDirectory("/data/out"), names)


@pytest.mark.parametrize("kind", [InputError, FormatError])
def test_errors_speak_of_what_was_given(tmp_path: Path, kind: type[InputError]) -> None:
    path = "/data/out/scratch/sent/sent-1.npy"
    arrived = named({path: "edges (sent from memory)"})
    error = kind(f"{path} has 3 rows, by sent-1.npy; not /a/sent-1.npy", path=path, remedy=path)
    with pytest.raises(kind), arrived:
        raise error
    assert error.path == error.remedy == "edges (sent from memory)"
    assert error.message == (
        "edges (sent from memory) has 3 rows, by edges (sent from memory); not /a/sent-1.npy"
    )


def test_an_error_of_the_disk_keeps_its_path() -> None:
    error = DiskRefusedError("/out/scratch/sent-0.npy: full", path="/out/scratch/sent-0.npy")
    with (
        pytest.raises(DiskRefusedError),
        Arrived(BuildSpec(out="/out"), {str(error.path): "edges"}),
    ):
        raise error
    assert error.path == "/out/scratch/sent-0.npy"
    other = InputError("of a file", path="/other.npy")
    put_names(other, {"/out/scratch/sent-0.npy": "edges"})
    assert (other.path, other.message, other.remedy) == ("/other.npy", "of a file", None)


def headers() -> Iterator[tuple[np.dtype[Any], tuple[int, ...]]]:
    yield np.dtype(">i4"), (7,)
    yield np.dtype("<f2"), (3, 0)
    yield np.dtype(bool), ()
    yield bits_dtype("bfloat16"), (2, 5)
    yield np.dtype(np.int64), tuple([1] * 30)


@pytest.mark.parametrize(("dtype", "shape"), list(headers()))
@pytest.mark.parametrize("fortran", [False, True])
def test_headers_are_numpys(
    tmp_path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool
) -> None:
    array = np.zeros(shape, dtype)
    header = npy_header(npy_closing(dtype, shape, fortran=fortran), array.nbytes)
    assert len(header) == NPY_HEADER_BYTES
    (tmp_path / "a.npy").write_bytes(header + array.tobytes())
    found = np.load(tmp_path / "a.npy")
    assert (found.dtype, found.shape) == (dtype, shape)
