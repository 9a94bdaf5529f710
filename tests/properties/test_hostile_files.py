"""Hostile files: refused by an error that says why, in bounded memory, and never run.

`tests/fuzz.py` does the same for longer and guided by coverage (``make fuzz``).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overspill as ov
from confined import PythonResult
from hostile_files import IDS
from naive import build_here
from overspill.build.journal import MARKER_NAME, read_journal
from overspill.build.readers.npy_header import LONGEST_HEADER_BYTES
from overspill.errors import FormatError, InputError, StaleFileError
from overspill.storage.arrays import read_array_info
from overspill.storage.manifest import MANIFEST_NAME
from overspill.storage.partition_manifest import PARTITION_NAME
from overspill.storage.records import payload_bytes
from reading import edges_of

# What imports take, torch's included, is about 400 MiB of it.
LIMIT_BYTES = 768 << 20
FUZZ = """
import faulthandler, sys
from pathlib import Path
import hypothesis
from hostile_files import WATCH, make_targets

for target in make_targets(Path(sys.argv[1])):
    accepted = [target.feed(seed) is None for seed in target.seeds]
    assert any(accepted), (target.name, [target.feed(seed) for seed in target.seeds])
    told = set()

    # Without chance: what is new is for the lane that runs longer.
    @hypothesis.settings(max_examples=12, deadline=None, database=None, derandomize=True,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(target.contents())
    def example(content):
        faulthandler.dump_traceback_later(60, exit=True)  # of no more than 10 ms
        told.add(target.feed(content))
        faulthandler.cancel_dump_traceback_later()

    example()
    print(target.name, len(told))

place = Path(sys.argv[1])
with WATCH.inside(place / "whole"):
    (place / "whole" / "manifest.json").read_bytes()
try:
    with WATCH.inside(place / "whole"):
        (place / "whole" / ".." / "secret").read_bytes()
except AssertionError as error:
    assert "secret" in str(error)
else:
    sys.exit("the watch does not see what is opened elsewhere")
"""


class Sabotage:
    """Would make a file if anybody unpickled it."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.made),)


@pytest.mark.memory
def test_every_reader_and_parser(tmp_path: Path, run_python: Callable[..., PythonResult]) -> None:
    (tmp_path / "place").mkdir()
    done = run_python(
        FUZZ,
        arguments=[tmp_path / "place"],
        limit_bytes=LIMIT_BYTES,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    ).check()
    refusals = {line.rpartition(" ")[0]: int(line.split()[-1]) for line in done.stdout.splitlines()}
    assert len(refusals) == 17 and done.kills == 0
    # A target that tells all files alike has looked at none; a lease is never refused.
    assert {name for name, count in refusals.items() if count < 2} == {"lease"}


@pytest.mark.parametrize("name", ["e.npy", "e.npz"])
def test_what_is_pickled_is_never_unpickled(tmp_path: Path, name: str) -> None:
    array = np.empty((2, 3), dtype=object)
    array[:] = Sabotage(tmp_path / "made")
    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, array)
    else:
        np.savez(path, src=array[0], dst=array[1])
    with pytest.raises(InputError):
        edges_of(path)
    edges = tmp_path / "edges.npy"
    np.save(edges, IDS)
    with pytest.raises(InputError):
        build_here(tmp_path / "out", edges=edges, node_features={"x": str(path)})
    assert not (tmp_path / "made").exists()
    np.load(path, allow_pickle=True)["src" if name.endswith("npz") else ...]
    assert (tmp_path / "made").exists(), "the file was harmless"


@pytest.mark.parametrize("name", [MANIFEST_NAME, PARTITION_NAME, "x"])
def test_a_pickle_under_the_name_of_a_file_of_a_dataset(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Sabotage(tmp_path / "made")))
    for opens in (ov.open_dataset, ov.open_partition, lambda place: read_array_info(place / name)):
        with pytest.raises(FormatError):
            opens(tmp_path)
    assert not (tmp_path / "made").exists()


class TestHeadersOfArrays:
    def npy(self, text: bytes, *, version: int = 2, claimed: int | None = None) -> bytes:
        length = len(text) if claimed is None else claimed
        packed = struct.pack("<I" if version == 2 else "<H", length)
        return b"\x93NUMPY" + bytes([version, 0]) + packed + text

    @pytest.mark.parametrize("claimed", [LONGEST_HEADER_BYTES + 1, 2**32 - 1])
    @pytest.mark.parametrize("name", ["e.npy", "e.npz"])
    def test_no_more_is_read_than_any_header_has(
        self, tmp_path: Path, name: str, claimed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In an archive, gigabytes of spaces come out of a few kilobytes."""
        content = self.npy(b" " * 1_000_000, claimed=claimed)
        path = tmp_path / name
        if name.endswith("npz"):
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("src.npy", content)
        else:
            path.write_bytes(content)
        asked: list[int] = []
        read = zipfile.ZipExtFile.read
        monkeypatch.setattr(
            zipfile.ZipExtFile, "read", lambda file, n=-1: (asked.append(n), read(file, n))[1]
        )
        with pytest.raises(InputError, match=f"{claimed} bytes"):
            edges_of(path)
        assert all(0 <= nbytes <= LONGEST_HEADER_BYTES for nbytes in asked)

    @pytest.mark.parametrize(
        "text",
        [
            b"(" * 9000,
            b"[" * 90 + b"]" * 90,
            b"{'descr': [('a', '<i8'",
            b"'''",
            b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1, 2)}",
            b"{'descr': '<i8', 'fortran_order': False, 'shape': (True, 2)}",
            b"{'descr': 7, 'fortran_order': False, 'shape': (1, 2)}",
            b"{'descr': ('<i8', ('x',)), 'fortran_order': False, 'shape': (1, 2)}",
            b"__import__('os').mkdir('made')",
        ],
    )
    @pytest.mark.parametrize("version", [1, 2])
    def test_text_that_is_no_header(
        self, tmp_path: Path, text: bytes, version: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "e.npy"
        path.write_bytes(self.npy(text, version=version) + bytes(16))
        with pytest.raises(InputError, match="header"):
            edges_of(path)
        assert not (tmp_path / "made").exists()

    @pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    def test_of_archives_only_what_inflates_piece_by_piece(
        self, tmp_path: Path, method: int
    ) -> None:
        file = io.BytesIO()
        np.save(file, IDS)
        path = tmp_path / "e.npz"
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("edges.npy", file.getvalue())
        with pytest.raises(InputError, match="neither stored nor deflated"):
            edges_of(path)

    def test_an_archive_that_inflates_to_other_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "e.npz"
        np.savez_compressed(path, src=IDS[0], dst=IDS[1])
        content = path.read_bytes()
        at = content.index(zlib.crc32(_saved(IDS[1])).to_bytes(4, "little"))
        path.write_bytes(content.replace(content[at : at + 4], b"\0\1\2\3"))
        with pytest.raises(InputError, match="CRC"):
            edges_of(path)


def _saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "shape",
    [
        (1,) * 65,
        (0, 2**62, 2**62),
        (2**63, 0),
        (-1,),
        (10**4000,) * 2000,  # whose product would take minutes
        (3,) * 100_000,
    ],
)
def test_shapes_that_no_array_has(shape: tuple[int, ...]) -> None:
    with pytest.raises(FormatError) as caught:
        payload_bytes("uint8", shape)
    assert len(str(caught.value)) < 1000


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A dataset, a partition of it, and a secret beside them."""
    edges = tmp_path / "edges.npy"
    np.save(edges, IDS)
    build_here(tmp_path / "whole", edges=edges)
    ov.partition_dataset(tmp_path / "whole", 2, out=tmp_path / "parts")
    return tmp_path


@pytest.mark.parametrize("path", ["../whole", "/etc", "a/../../whole", ".", "", "a\0b", "\ud800"])
def test_a_partition_leads_nowhere_else(held: Path, path: str) -> None:
    document = json.loads((held / "parts" / PARTITION_NAME).read_text())
    parts = document["parts"][1]["path"]
    document["parts"][1]["path"] = path
    (held / "parts" / PARTITION_NAME).write_text(json.dumps(document))
    with pytest.raises(FormatError):
        ov.open_partition(held / "parts")
    document["parts"][1]["path"] = parts
    book = next(iter(document["books"].values()))["file"]
    book["path"] = path
    (held / "parts" / PARTITION_NAME).write_text(json.dumps(document))
    with pytest.raises(FormatError):
        ov.open_partition(held / "parts")


@pytest.mark.parametrize("path", ["../edges.npy", "/etc/passwd", "\ud800", "n" * 300])
def test_a_manifest_leads_nowhere_else(held: Path, path: str) -> None:
    name = held / "whole" / MANIFEST_NAME
    document = json.loads(name.read_text())
    document["edge_types"][0]["layouts"]["csc"]["indptr"]["path"] = path
    name.write_text(json.dumps(document))
    with pytest.raises((FormatError, StaleFileError)):
        ov.open_dataset(held / "whole")


@pytest.mark.parametrize("line", ['"../secret"', '"/etc/passwd"', '"\\ud800"', "7", "[" * 90_000])
def test_a_list_of_what_to_remove_leads_nowhere_else(tmp_path: Path, line: str) -> None:
    first = json.dumps({"format": "overspill-build", "version": 1})
    (tmp_path / MARKER_NAME).write_text(f"{first}\n{line}\n")
    with pytest.raises(FormatError):
        read_journal(tmp_path)
