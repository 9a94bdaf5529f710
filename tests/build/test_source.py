"""A file that changes while a build reads it is refused, whenever it changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naive import TINY
from overspill.build.construct import construct
from overspill.build.describe import describe_build
from overspill.build.inputs import Inputs
from overspill.build.readers.source import SourceFile
from overspill.errors import InputError

EDGES = np.random.default_rng(8).integers(0, 30, (2, 200))


def make(path: Path, seed: int = 8) -> Path:
    """The same number of bytes for every seed, and a time of change long ago."""
    pairs = np.random.default_rng(seed).integers(10, 30, (200, 2))
    separator, header = ("\t", "# two columns") if path.suffix == ".txt" else (",", "src,dst")
    if path.suffix == ".npy":
        np.save(path, pairs)
    else:
        path.write_text("\n".join([header, *(f"{s}{separator}{t}" for s, t in pairs.tolist())]))
    os.utime(path, ns=(seed, seed))
    return path


def replace_file(path: Path) -> None:
    make(path.with_name("other" + path.suffix), seed=9).rename(path)


def write_over(path: Path) -> None:
    content = path.with_name("other" + path.suffix)
    with path.open("r+b") as file:
        file.write(make(content, seed=9).read_bytes())


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n11,12")


CHANGES = [replace_file, write_over, cut, grow]


def changed_at(
    tmp_path: Path, path: Path, change: Callable[[Path], None], phase: str, **options: Any
) -> InputError:
    """Build, change a file at the first event of a phase, expect the error about it."""
    spec = describe_build(tmp_path / "out", **options)
    pending = [change]

    def act(event: dict[str, Any]) -> None:
        if event["phase"] == phase and pending:
            pending.pop()(path)

    with pytest.raises(InputError, match=r"was (changed|cut) while the build read it") as caught:
        construct(spec, TINY, inputs=Inputs.open(spec), send=act)
    assert not pending and not (tmp_path / "out").exists()
    assert caught.value.path == str(path) and caught.value.remedy
    return caught.value


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["npy", "csv", "txt"])
@pytest.mark.parametrize("phase", ["collect ids", "partition"])
def test_edges_that_change(
    tmp_path: Path, kind: str, change: Callable[[Path], None], phase: str
) -> None:
    """Before the first pass of a remapped build, and between its two."""
    path = make(tmp_path / f"e.{kind}")
    changed_at(tmp_path, path, change, phase, edges=path, ids="remap")


@pytest.mark.parametrize("change", CHANGES)
def test_features_that_change(tmp_path: Path, change: Callable[[Path], None]) -> None:
    np.save(tmp_path / "e.npy", np.zeros((2, 5), np.int64))
    path = make(tmp_path / "x.npy")
    changed_at(
        tmp_path,
        path,
        change,
        "copy node arrays",
        edges=tmp_path / "e.npy",
        node_features={"x": path},
    )


@pytest.mark.parametrize("change", [write_over, cut, grow])
@pytest.mark.parametrize("kind", ["npy", "csv", "txt"])
def test_edges_that_change_under_the_reader(
    tmp_path: Path, kind: str, change: Callable[[Path], None]
) -> None:
    """All bytes are read, the first before the change and the last after it."""
    path = make(tmp_path / f"e.{kind}")
    inputs = Inputs.open(describe_build(tmp_path / "out", edges=path, ids="dense"))
    chunks = inputs.edges[0].readers[0].chunks(7)
    next(chunks)
    change(path)
    with pytest.raises(InputError, match="was changed while the build read it") as caught:
        for _ in chunks:
            pass
    assert caught.value.path == str(path)


def test_a_file_that_is_renamed_away_is_read_to_its_end(tmp_path: Path) -> None:
    path = make(tmp_path / "e.npy")
    inputs = Inputs.open(describe_build(tmp_path / "out", edges=path, ids="dense"))
    [reader] = inputs.edges[0].readers
    chunks = reader.chunks(7)
    found = [next(chunks)]
    replace_file(path)
    found += chunks
    assert sum(len(chunk.sources) for chunk in found) == 200
    with pytest.raises(InputError, match="another file"):
        next(reader.chunks(7))


def test_a_source_says_what_changed(tmp_path: Path) -> None:
    path = make(tmp_path / "e.csv")
    source = SourceFile.check(str(path))
    assert source.nbytes == path.stat().st_size and source.path == str(path)
    with source.opened() as file:
        assert file.read(3) == b"src"
    cut(path)
    with pytest.raises(InputError, match=f"its {source.nbytes} bytes became {source.nbytes - 3}"):
        source.opened().__enter__()


def test_the_change_is_told_before_what_it_broke(tmp_path: Path) -> None:
    path = make(tmp_path / "e.csv")
    inputs = Inputs.open(describe_build(tmp_path / "out", edges=path, ids="dense"))
    [reader] = inputs.edges[0].readers
    path.write_text("src,dst\nx,y\n")
    with pytest.raises(InputError, match="was changed while"):
        next(reader.chunks(7))
