"""Arrays that lead out of a dataset are found, whatever their checksums say."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import overspill as ov
from overspill.storage.checksums import verify_checksums
from overspill.storage.index_bounds import Bounds, NumbersRead, bounds_of
from overspill.storage.manifest import Manifest, read_manifest
from typed_command import in_a_process as command

BUYS = ("user", "buys", "item")


def naive(values: list[int], bounds: Bounds) -> bool:
    if not bounds.pointers:
        return all(0 <= value < bounds.count for value in values)
    return (values or [0])[0] == 0 and sorted(values) == values and [0, *values][-1] == bounds.count


@given(
    st.lists(st.integers(-1, 6), max_size=12),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["int32", "int64"]),
    st.lists(st.integers(1, 17), min_size=1, max_size=4),
)
def test_numbers_are_held_against_their_bounds(
    values: list[int], count: int, rise: bool, pointers: bool, dtype: str, cuts: list[int]
) -> None:
    values = sorted(values) if rise else values
    bounds = Bounds(count, "nodes", pointers=pointers)
    read, payload, at = NumbersRead(dtype, bounds), np.array(values, dtype).tobytes(), 0
    while at < len(payload):
        size = cuts[at % len(cuts)]  # pieces end within numbers
        read.take(memoryview(payload[at : at + size]))
        at += size
    assert (read.fault() is None) == naive(values, bounds)


def test_a_fault_says_where() -> None:
    read = NumbersRead("int32", Bounds(10, "nodes of type 'a'"))
    for piece in ([1, 2], [3, -4, 99]):
        read.take(memoryview(np.array(piece, np.int32).tobytes()))
    assert read.fault() == "number 3 is -4, of 10 nodes of type 'a'"
    read = NumbersRead("int64", Bounds(10, "edges", pointers=True))
    read.take(memoryview(np.array([0, 4, 2, 10]).tobytes()))
    assert read.fault() == "number 2 is 2, in pointers that rise from 0 to 10 edges"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A dataset with every array that is followed: text ids, renumbered, both layouts; parted."""
    place = tmp_path_factory.mktemp("bounds")
    rng = np.random.default_rng(3)
    lines = "".join(f"u{u},i{i}\n" for u, i in rng.integers(0, 9, (60, 2)))
    (place / "edges.csv").write_text(f"user,item\n{lines}")
    dataset = ov.build_dataset(
        place / "whole",
        edges={BUYS: place / "edges.csv"},
        ids="text",
        header=True,
        order="degree",
        layout=("csc", "csr"),
    )
    ov.partition_dataset(dataset, 2, out=place / "parts", method="hash")
    yield place
    shutil.rmtree(place)


def forge(directory: Path, path: str, change: Callable[[Any], None], dtype: str) -> None:
    """Change the payload of a file, and what the manifest says of it, as somebody would."""
    file, manifest = directory / path, directory / "manifest.json"
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    change(np.frombuffer(memoryview(content)[start:], dtype))
    file.write_bytes(content)

    def with_digest(held: Any) -> Any:
        if isinstance(held, list):
            return [with_digest(one) for one in held]
        if not isinstance(held, dict):
            return held
        if held.get("path") == path:
            return held | {"sha256": hashlib.sha256(content[start:]).hexdigest()}
        return {name: with_digest(value) for name, value in held.items()}

    manifest.write_text(json.dumps(with_digest(json.loads(manifest.read_text()))))


def negative(values: Any) -> None:
    values[1] = -1


def too_many(values: Any) -> None:
    values[-1] = 1 << 20


def followed(manifest: Manifest) -> set[str]:
    return {Path(path).name.removesuffix(".safetensors") for path in bounds_of(manifest)}


def test_what_is_followed(whole: Path) -> None:
    rows = {"csc.indptr", "csc.indices", "csr.indptr", "csr.indices"}
    moved = {"original", "renumbered", "id_offsets"}
    assert followed(read_manifest(whole / "whole")) == rows | moved
    part = read_manifest(whole / "parts" / "part-00000")
    assert part.partition is not None
    listed = {record.path for record in part.partition.files()}
    assert listed and listed < set(bounds_of(part))


@pytest.mark.parametrize("change", [negative, too_many])
@pytest.mark.parametrize("place", ["whole", "parts/part-00001"])
def test_each_of_them_is_found(
    whole: Path, place: str, change: Callable[[Any], None], tmp_path: Path
) -> None:
    manifest = read_manifest(whole / place)
    bounds = bounds_of(manifest)
    assert verify_checksums(whole / place, manifest, bounds=bounds) == []
    dtypes = {record.path: record.dtype for record in manifest.files()}
    for number, path in enumerate(bounds):
        forged = tmp_path / str(number)
        shutil.copytree(whole / place, forged)
        forge(forged, path, change, dtypes[path])
        found = read_manifest(forged)  # opening reads no payload
        assert verify_checksums(forged, found) == []
        (problem,) = verify_checksums(forged, found, bounds=bounds_of(found))
        assert problem.path == str(forged / path)
        assert problem.reason.startswith("it leads out of the dataset: ")


def test_the_command_tells_it(whole: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(whole / "whole", forged)
    edge = read_manifest(forged).edge_types[BUYS].layouts["csc"]["indices"]
    forge(forged, edge.path, too_many, edge.dtype)
    told = command("verify", forged, code=1).stderr
    assert edge.path in told and "1048576, of 9 nodes of type 'user'" in " ".join(told.split())
    assert "what to do" in told and "Traceback" not in told
