"""What a file can be fed to: each format that is read, with valid seeds and what must not happen.

A target fails by any error but Overspill's own, by opening a file outside of its directory (its
sentinel lies right beside it), or by starting a program. Hangs and memory are for whoever runs it.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
from hypothesis.strategies import SearchStrategy

import overspill as ov
from hostile_values import binaries, documents
from naive import build_here
from overspill.build.journal import MARKER_NAME, is_unfinished_build, read_journal, remove_listed
from overspill.build.readers.edges import open_edges
from overspill.build.readers.features import open_features
from overspill.build.readers.source import SourceFile
from overspill.build.readers.tables import open_table
from overspill.build.spec import EdgeSpec
from overspill.errors import OverspillError
from overspill.graph.reading.pack_manifest import PACK_NAME, read_pack_manifest
from overspill.storage.arrays import ArrayWriter, encode_header, map_array, read_array_info
from overspill.storage.lease_records import lease_text, read_lease
from overspill.storage.manifest import MANIFEST_NAME, read_manifest
from overspill.storage.partition_manifest import PARTITION_NAME, read_partition
from tf_examples import records

IDS = np.arange(40, dtype=np.int64).reshape(2, 20)
_ROWS = [{"src": i, "dst": i + 1, "feat": [0.5, 2.0]} for i in range(4)]
_STARTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"})
_CODE = (sys.prefix, sys.base_prefix, Path(ov.__file__).parent, Path(__file__).parent)
_OURS = (
    *(f"{place}/" for place in _CODE),
    *(f"{os.path.realpath(place)}/" for place in _CODE),
    "/proc/",
    "/sys/",
)


@dataclass
class Watch:
    """An audit hook, which stays for the rest of the process and looks only within `inside`."""

    place: str | None = None
    found: str | None = None

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.place is None:
            return
        if event in _STARTS:
            self.found = f"{event} {arguments}"
        elif event in ("open", "os.remove", "os.rename", "os.mkdir", "os.rmdir"):
            name = arguments[0]
            if not isinstance(name, str | bytes):
                return
            path = f"{os.path.abspath(os.fsdecode(name))}/"  # noqa: PTH100 - links stay
            if not path.startswith((self.place, *_OURS)):
                self.found = f"{event} {path}"

    @contextlib.contextmanager
    def inside(self, place: Path) -> Iterator[None]:
        """Assert that nothing but what lies in a directory is touched."""
        self.place, self.found = f"{place}/", None
        try:
            yield
        finally:
            self.place = None
        assert self.found is None, self.found


WATCH = Watch()


@dataclass(frozen=True)
class Target:
    """One thing that reads files.

    Attributes:
        name: What it is called.
        path: The file that is fed, within a directory prepared once.
        seeds: Valid files.
        read: Reads the file at a path to its end.
        mutated: Makes hostile files of valid ones.
    """

    name: str
    path: Path
    seeds: tuple[bytes, ...]
    read: Callable[[Path], Any]
    mutated: Callable[[tuple[bytes, ...]], SearchStrategy[bytes]]

    def contents(self) -> SearchStrategy[bytes]:
        """Hostile files."""
        return self.mutated(self.seeds)

    def feed(self, content: bytes) -> str | None:
        """Read one file; the refusal, None where it was read."""
        self.path.write_bytes(content)
        try:
            with WATCH.inside(self.path.parent):
                self.read(self.path)
        except OverspillError as error:
            return str(error)
        return None


def make_targets(place: Path) -> list[Target]:
    """Every target, with what it needs in a directory of its own.

    Args:
        place: An empty directory.
    """
    sys.addaudithook(WATCH)
    found = [*_documents(place), *_stored(place)]
    for suffix, seeds in _edge_seeds().items():
        home = place / f"of{suffix}"
        home.mkdir()
        found.append(Target(home.name, home / f"e{suffix}", seeds, _read_edges, binaries))
    (place / "secret").write_text("nobody reads this")
    return found


def _documents(place: Path) -> Iterator[Target]:
    edges = place / "edges.npy"
    np.save(edges, IDS % 17)
    build_here(place / "whole", edges=edges, ids="remap", order="degree")
    ov.partition_dataset(place / "whole", 2, out=place / "parts", method="hash")
    held = [path.read_bytes() for path in sorted(place.rglob(MANIFEST_NAME))]
    yield Target(
        "manifest",
        place / "whole" / MANIFEST_NAME,
        tuple(held),
        lambda path: read_manifest(path.parent),
        documents,
    )
    path = place / "parts" / PARTITION_NAME
    yield Target(
        "partition",
        path,
        (path.read_bytes(),),
        lambda path: read_partition(path.parent),
        documents,
    )
    yield _pack(place / "pack")


def _pack(place: Path) -> Target:
    place.mkdir()
    with ArrayWriter(place / "counts", dtype="int64", shape=(0, 0)) as writer:
        pass
    held = {
        "format": "overspill-pack",
        "version": 1,
        "recipe": {"arrays": []},
        "batches": 0,
        "counts": writer.result.to_json(),
        "parts": {},
        "rows": [],
    }
    full = held | {
        "recipe": {"arrays": [["node", "x", "nodes"]]},
        "parts": {"nodes": held["counts"]},
        "rows": [held["counts"]],
    }
    return Target(
        "pack",
        place / PACK_NAME,
        (json.dumps(held).encode(), json.dumps(full).encode()),
        lambda path: read_pack_manifest(path.parent),
        documents,
    )


def _stored(place: Path) -> Iterator[Target]:
    homes = [place / name for name in ("array", "header", "lease", "journal", "rows")]
    for home in homes:
        home.mkdir()
    whole = tuple(
        encode_header(dtype, shape) + bytes(nbytes)
        for dtype, shape, nbytes in (("int64", (3, 2), 48), ("bfloat16", (0, 7), 0))
    )
    yield Target("array", homes[0] / "x", whole, _map, binaries)
    headers = tuple(file[8:4096].rstrip() for file in whole)
    yield Target("array header", homes[1] / "x", headers, _map_headed, documents)
    leases = (lease_text("0" * 32, marked=True).rstrip(),)
    yield Target("lease", homes[2] / "lease", leases, _read_lease, documents)
    lines = [{"format": "overspill-build", "version": 1}, "a/", "a/b", {"step": "x"}]
    journal = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    yield Target("journal", homes[3] / MARKER_NAME, (journal,), _read_journal, binaries)
    rows = tuple(_npy(array) for array in (IDS, IDS.astype(np.float32).T, np.asfortranarray(IDS)))
    yield Target(
        "rows", homes[4] / "x.npy", rows, lambda path: open_features(str(path), "x"), binaries
    )


def _map(path: Path) -> None:
    info = read_array_info(path)
    _, array = map_array(path, info)
    assert array.shape == info.shape


def _map_headed(path: Path) -> None:
    """The fed bytes are the header's text: length and payload are made to fit it."""
    text = path.read_bytes()
    text = text.ljust(-(-(len(text) + 8) // 4096) * 4096 - 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(48))
    _map(path)


def _read_lease(path: Path) -> None:
    with path.open("rb") as file:
        read_lease(file.fileno())


def _read_journal(path: Path) -> None:
    if is_unfinished_build(path.parent):
        read_journal(path.parent)
        remove_listed(path.parent)


def _read_edges(path: Path) -> None:
    source = SourceFile.check(str(path))
    refusals = []
    for text in ((False, False), (True, True)):
        try:
            for chunk in open_edges(source, EdgeSpec(), text=text).chunks(7):
                assert len(chunk.sources) == len(chunk.targets) <= 7
        except OverspillError as error:
            refusals.append(error)
    with contextlib.suppress(OverspillError):
        for _ in open_table([str(path)], ("dst",)).pieces(64):
            pass
    if len(refusals) == 2:
        raise refusals[0]


def _edge_seeds() -> dict[str, tuple[bytes, ...]]:
    lines = b"src,dst\n" + b"".join(b"%d,%d\n" % (i, i + 1) for i in range(20))
    words = b'src\tdst\n"a ""b"""\tc\nd\te\n'
    table = pa.table({"src": IDS[0], "dst": IDS[1]})
    named = pa.table({"src": ["a", "b", None], "dst": ["c", "d", "e"]}).combine_chunks()
    return {
        ".npy": (_npy(IDS), _npy(IDS.T.astype(np.uint8)), _npy(IDS.astype(">i4"))),
        ".npz": (_npz(np.savez), _npz(np.savez_compressed), _bzip2()),
        ".csv": (lines, b"1,2\n3,4\n"),
        ".csv.gz": (gzip.compress(lines),),
        ".tsv": (words,),
        ".txt": (b"# a comment\n1 2\n3\t4\n",),
        ".tfrecord": (records(_ROWS), records([{"src": "a", "dst": "b"}])),
        ".parquet": (_parquet(table), _parquet(named)),
        ".arrow": (_arrow(table), _arrow(named)),
    }


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _npz(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, src=IDS[0], dst=IDS[1])
    return file.getvalue()


def _bzip2() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("src.npy", _npy(IDS[0]))
        archive.writestr("dst.npy", _npy(IDS[1]))
    return file.getvalue()


def _parquet(table: Any) -> bytes:
    file = io.BytesIO()
    pa.parquet.write_table(table, file)
    return file.getvalue()


def _arrow(table: Any) -> bytes:
    file = io.BytesIO()
    pa.feather.write_feather(table, file, compression="uncompressed")
    return file.getvalue()
