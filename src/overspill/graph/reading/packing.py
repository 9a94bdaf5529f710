"""A pack: sampled batches with their rows, in batch order, read sequentially.

Bottleneck: the device, which reads in order here at 10 times and more the rate of random rows.
Algorithm: each part of a batch, and its rows of each array, lie in one piece of one file, which is
read straight into the caller's tensor, and leaves the page cache behind the reader.

Limits: it holds the batches that were packed and no others; it pays from their second use on.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.errors import FormatError, InputError, StaleFileError
from overspill.graph.reading.array_keys import ArrayKey
from overspill.graph.reading.pack_file import PackFile
from overspill.graph.reading.pack_manifest import PackManifest, PackRecipe, read_pack_manifest
from overspill.linux.identity import host_identity
from overspill.storage.arrays import map_array
from overspill.storage.checksums import ChecksumProblem, verify_checksums
from overspill.storage.records import FileRecord
from overspill.storage.sent_paths import sent_from
from overspill.tensors.dtypes import torch_dtype
from overspill.tensors.layouts import bytes_of

_TOLD_LENGTH = 100


class Pack:
    """A finished pack, as `open_pack` gives it.

    It pickles by path and recipe. Files are opened on first use; threads may read at the same
    time. Close it, or use it as a context manager.

    Attributes:
        path: Its directory.
        batches: How many batches it holds.
    """

    def __init__(self, path: Path, recipe: PackRecipe, manifest: PackManifest) -> None:
        self.path, self.batches = path, manifest.batches
        self._recipe, self._manifest = recipe, manifest
        _, counts = map_array(path / manifest.counts.path, manifest.counts)
        self._ends = np.zeros((self.batches + 1, len(manifest.parts)), np.int64)
        np.cumsum(counts, axis=0, out=self._ends[1:])
        self._columns = {name: place for place, name in enumerate(manifest.parts)}
        self._require_whole()
        self._files: dict[str, PackFile] = {}

    @property
    def parts(self) -> list[str]:
        """Names of the parts of a batch."""
        return list(self._columns)

    def part_shape(self, i: int, name: str) -> tuple[int, ...]:
        """The shape of a part of a batch (InputError where there is none)."""
        first, last = self._span(i, name)
        return (last - first, *self._part(name).shape[1:])

    def part_dtype(self, name: str) -> torch.dtype:
        """The dtype of a part (InputError where there is none)."""
        return torch_dtype(self._part(name).dtype)

    def read_part(self, i: int, name: str, out: torch.Tensor) -> None:
        """Read a part of a batch.

        Args:
            i: Which batch.
            name: One of `parts`.
            out: Contiguous CPU tensor of `part_shape` and `part_dtype`, filled.

        Raises:
            InputError: No such batch or part, or an `out` that does not fit.
            StaleFileError: The file is gone or was cut.
            MappingError: The disk refused to read.
        """
        self._read(self._part(name), self._span(i, name), out)

    def read_rows(self, i: int, key: ArrayKey, out: torch.Tensor) -> None:
        """Read the rows of a batch of one array, in the order of the ids that name them.

        Args:
            i: Which batch.
            key: One of the arrays that were packed.
            out: Contiguous CPU tensor of the array's dtype, (ids, ...), filled.

        Raises:
            InputError: No such batch or array, or an `out` that does not fit.
            StaleFileError: The file is gone or was cut.
            MappingError: The disk refused to read.
        """
        if key not in self._recipe.arrays:
            held = ", ".join(map(str, self._recipe.arrays))
            raise InputError(f"no rows of {key} are packed", remedy=f"one of: {held or '(none)'}")
        place = list(self._recipe.arrays).index(key)
        span = self._span(i, self._recipe.arrays[key])
        self._read(self._manifest.rows[place], span, out)

    def verify(self) -> list[ChecksumProblem]:
        """Read every file once and compare its checksum; none where all are as they were."""
        return verify_checksums(self.path, self._manifest)

    def close(self) -> None:
        """Close the files; a later read opens them again."""
        files, self._files = self._files, {}
        for file in files.values():
            file.close()

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (str(self.path), self._recipe, host_identity())

    def __repr__(self) -> str:
        return f"Pack({str(self.path)!r}, batches={self.batches})"

    def _part(self, name: str) -> FileRecord:
        if name not in self._columns:
            raise InputError(
                f"a batch of this pack has no part {name!r}",
                path=str(self.path),
                remedy=f"one of: {', '.join(self._columns) or '(none)'}",
            )
        return self._manifest.parts[name]

    def _span(self, i: int, name: str) -> tuple[int, int]:
        if not 0 <= i < self.batches:
            raise InputError(
                f"no batch {i} among the {self.batches} that are packed",
                value=str(i),
                remedy="count batches from 0",
            )
        column = self._columns[name]
        return int(self._ends[i, column]), int(self._ends[i + 1, column])

    def _read(self, record: FileRecord, span: tuple[int, int], out: torch.Tensor) -> None:
        shape, dtype = (span[1] - span[0], *record.shape[1:]), torch_dtype(record.dtype)
        if tuple(out.shape) != shape or out.dtype != dtype or not out.is_contiguous():
            raise InputError(
                f"out is {out.dtype} {tuple(out.shape)} where a contiguous {dtype} {shape} is "
                "needed",
                remedy="allocate it like that",
            )
        file = self._files.get(record.path)
        if file is None:
            opened = PackFile(self.path / record.path, record)
            file = self._files.setdefault(record.path, opened)
            if file is not opened:  # another thread was faster
                opened.close()
        memory: npt.NDArray[np.uint8] = bytes_of(out).numpy()
        row = memory.size // max(1, shape[0])
        file.read(span[0] * row, memory)

    def _require_whole(self) -> None:
        totals = [record.shape[0] for record in self._manifest.parts.values()]
        if self._ends[-1].tolist() != totals or (np.diff(self._ends, axis=0) < 0).any():
            raise FormatError(
                "the batches of a pack do not add up to its files",
                path=str(self.path),
                remedy="remove the directory, so that the batches are packed again",
            )


def open_pack(path: str | Path, recipe: PackRecipe) -> Pack | None:
    """Open a pack, if it is there and finished.

    Args:
        path: Its directory.
        recipe: What its batches must have been made by.

    Returns:
        The pack; None where there is none yet, or an unfinished one, which a `PackWriter` starts
        over.

    Raises:
        InputError: It was made by other options or another seed.
        StaleFileError: It was made of another dataset, or a file of it is gone or differs.
        FormatError: It is damaged, or of a version that this Overspill does not read.
    """
    place = Path(path).absolute()
    manifest = read_pack_manifest(place)
    if manifest is None:
        return None
    _require_same(place, manifest.recipe, recipe.to_json())
    return Pack(place, recipe, manifest)


def _require_same(path: Path, held: dict[str, Any], wanted: dict[str, Any]) -> None:
    remedy = "remove the directory, so that the batches are packed again, or give another one"
    if held.get("dataset") != wanted["dataset"]:
        raise StaleFileError(
            "the pack was made of another dataset, or before it was built again",
            path=str(path),
            remedy=remedy,
        )
    differing = list(_differences(held, wanted))
    if differing:
        raise InputError(
            f"the pack holds batches that were made otherwise: {'; '.join(differing)}",
            path=str(path),
            remedy=f"give the same, or {remedy}",
        )


def _differences(held: dict[str, Any], wanted: dict[str, Any]) -> Iterable[str]:
    for name in ("seed", "arrays"):
        if held.get(name) != wanted[name]:
            yield _told(name, held.get(name), wanted[name])
    before, now = dict(held.get("options") or {}), wanted["options"]
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield _told(name, before.get(name), now.get(name))


def _told(name: str, before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(before.keys() | now.keys())
        parts = (part for part in names if before.get(part) != now.get(part))
        return "; ".join(_told(part, before.get(part), now.get(part)) for part in parts)
    values = f"{before!r}, not {now!r}"
    # A hash, or all arrays, would tell nobody more.
    return f"other {name}" if len(values) > _TOLD_LENGTH else f"{name} {values}"


def _reopened(path: str, recipe: PackRecipe, host: str) -> Pack:
    with sent_from(host, path, "pack"):
        pack = open_pack(path, recipe)
        if pack is None:
            raise StaleFileError(
                "the pack is gone", path=path, remedy="keep the directory while it is read"
            )
    return pack
