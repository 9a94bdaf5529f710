"""Makes a pack: the batches as they are sampled, then their rows in batch order, out of core.

Bottleneck: the device. What a batch consists of is appended as it comes. The rows follow once all
batches are known, by the build's own passes: each array is read once, in order, beside the places
that want its rows, and these are put in order bucket by bucket. So nothing is read at random.

Limits: disk space beside the pack itself, while an array is packed: its packed rows once more, and
12 bytes a row (20 beyond 2**31 rows).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overspill.build.directory import BuildDirectory
from overspill.build.moving.permute import RowOutput, gather_rows, warm_row_kernels
from overspill.build.moving.row_sources import ArrayRows
from overspill.build.plan import RESERVE_BYTES, BuildPlan, plan_build
from overspill.errors import InputError, OutputDirError
from overspill.graph.dataset import Dataset
from overspill.graph.reading.array_keys import ArrayKey, record_of
from overspill.graph.reading.growing import GrowingArrayWriter
from overspill.graph.reading.pack_manifest import PACK_NAME, PackManifest, PackRecipe
from overspill.graph.rows import row_bytes
from overspill.storage.records import FileRecord

Part = torch.Tensor | npt.NDArray[Any]
MEMORY_BYTES = 256 << 20


class PackWriter:
    """Writes a pack; leaving the block without `finish` removes what was written.

    A process that is killed leaves an unfinished pack, which is never read, and which the next
    writer starts over. One thread at a time, in the process that made it.

    Args:
        path: The directory: absent, empty, or an unfinished pack.
        dataset: The dataset that the batches are of.
        recipe: What the batches are made by.
        memory_bytes: For the passes in `finish`.

    Raises:
        OutputDirError: The directory holds something else, or another process packs into it.
        InputError: The recipe names an array that the dataset does not have.
        NoRoomError: The memory does not do for the passes.
        DiskRefusedError: The directory cannot be written.
    """

    def __init__(
        self,
        path: Path,
        dataset: Dataset,
        recipe: PackRecipe,
        *,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._dataset, self._recipe = dataset, recipe
        self._records = {key: record_of(dataset, key) for key in recipe.arrays}
        self._plan = _planned(memory_bytes)
        self._directory = BuildDirectory(path, fingerprint=recipe.dataset)
        self._parts: dict[str, GrowingArrayWriter] = {}
        self._counts: list[list[int]] = []
        self._stack = ExitStack()

    @property
    def batches(self) -> int:
        """How many batches were appended."""
        return len(self._counts)

    def __enter__(self) -> PackWriter:
        path = self._directory.path
        if (path / PACK_NAME).exists():
            raise OutputDirError(
                f"{path} holds a finished pack",
                path=str(path),
                remedy="open it, remove the directory, or choose another one",
            )
        self._stack.enter_context(self._directory)
        return self

    def append(self, parts: Mapping[str, Part]) -> None:
        """Append the next batch, without the rows of arrays; written when this returns.

        Args:
            parts: By name, the same ones for every batch: node ids, edges, places, counts; each
                with one row or more an entry, of types and row shapes that stay the same.

        Raises:
            InputError: Other parts than before, or parts that name rows and are no whole numbers.
            DiskRefusedError: The disk refused.
        """
        held = {name: _as_array(part) for name, part in parts.items()}
        if not self._counts:
            self._begin(held)
        if held.keys() != self._parts.keys():
            raise InputError(
                f"a batch has the parts {sorted(held)} where the first had {sorted(self._parts)}",
                remedy="give the same parts for every batch",
            )
        for name, file in self._parts.items():
            file.append(held[name])
        self._counts.append([len(held[name]) for name in self._parts])

    def finish(self) -> None:
        """Pack the rows and publish the pack.

        Raises:
            InputError: A batch names a row that there is not.
            StaleFileError: A file of the dataset changed.
            DiskRefusedError: The disk refused; nothing is left.
            OutputDirError: The directory was removed or replaced.
        """
        parts = {name: file.finish() for name, file in self._parts.items()}
        warm_row_kernels(row_bytes(record) for record in self._records.values())
        rows = [
            self._packed(place, key, parts[part])
            for place, (key, part) in enumerate(self._recipe.arrays.items())
            if self._counts
        ]
        manifest = PackManifest(
            recipe=self._recipe.to_json(),
            batches=self.batches,
            counts=self._write_counts(),
            parts=parts,
            rows=rows,
        )
        self._directory.publish_as(PACK_NAME, lambda: manifest.publish(self._directory.path))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._parts.values():
            file.close()
        self._stack.__exit__(kind, error, trace)

    def _begin(self, held: Mapping[str, npt.NDArray[Any]]) -> None:
        for key, part in self._recipe.arrays.items():
            if part not in held or held[part].ndim != 1 or held[part].dtype.name != "int64":
                raise InputError(
                    f"the rows of {key} are named by the part {part!r}, which is missing or not "
                    "int64 of one dimension",
                    remedy="give ids or places as int64",
                )
        for place, (name, rows) in enumerate(held.items()):
            self._parts[name] = self._growing(f"parts/{place}", rows.dtype.name, rows.shape[1:])

    def _growing(self, name: str, dtype: str, row_shape: tuple[int, ...]) -> GrowingArrayWriter:
        path, _ = self._directory.files([name, f"{name}.partial"])
        return GrowingArrayWriter(path, dtype=dtype, row_shape=row_shape, record_path=name)

    def _packed(self, place: int, key: ArrayKey, part: FileRecord) -> FileRecord:
        record = self._records[key]
        index = ArrayRows(self._directory.path / part.path, part)
        output = RowOutput(
            self._directory,
            self._plan,
            f"rows/{place}",
            record.dtype,
            (part.shape[0], *record.shape[1:]),
        )
        source = ArrayRows(self._dataset.path / record.path, record)
        return gather_rows(index.elements(output.piece_bytes), source, output)

    def _write_counts(self) -> FileRecord:
        counts = np.array(self._counts, np.int64).reshape(self.batches, len(self._parts))
        file = self._growing("counts", "int64", counts.shape[1:])
        self._parts = {}  # finished: nothing is left to close but this one
        try:
            file.append(counts)
            return file.finish()
        finally:
            file.close()


def _planned(memory_bytes: int) -> BuildPlan:
    return plan_build(
        base_bytes=0,
        available_bytes=memory_bytes + RESERVE_BYTES,
        limit_bytes=memory_bytes,
        threads=1,
    )


def _as_array(part: Part) -> npt.NDArray[Any]:
    held = part.detach().numpy() if isinstance(part, torch.Tensor) else np.asarray(part)
    if held.ndim < 1:
        raise InputError("a part of a batch is one number", remedy="give it as an array of one")
    return held
