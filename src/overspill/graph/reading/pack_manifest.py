"""What a pack says of itself: which batches of which dataset it holds, and in which files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from overspill.errors import FormatError, sentence_of
from overspill.graph.reading.array_keys import ArrayKey
from overspill.storage.arrays import open_regular
from overspill.storage.json_files import publish_json
from overspill.storage.manifest import check_file
from overspill.storage.records import FileRecord
from overspill.storage.type_records import whole_count

PACK_NAME = "pack.json"
FORMAT = "overspill-pack"
VERSION = 1
_LARGEST_MANIFEST = 64 << 20


@dataclass(frozen=True, kw_only=True)
class PackRecipe:
    """Which batches a pack holds; another recipe makes other batches.

    Attributes:
        dataset: Identifier of the dataset.
        seed: Seed of the loader.
        options: Everything else that decides the batches, as JSON holds it.
        arrays: The arrays whose rows are packed, each with the part of a batch that names them:
            int64 ids or places.
    """

    dataset: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[ArrayKey, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The recipe as JSON holds it."""
        return {
            "dataset": self.dataset,
            "seed": self.seed,
            "options": json.loads(
                json.dumps(dict(self.options), allow_nan=False)
            ),  # tuples become lists
            "arrays": [[_owner(key), key[1], part] for key, part in self.arrays.items()],
        }


@dataclass(frozen=True, kw_only=True)
class PackManifest:
    """The files of a finished pack.

    Attributes:
        recipe: The recipe, as JSON.
        batches: How many batches there are.
        counts: int64 (batches, parts): the length of each part of each batch.
        parts: By name, in the order of `counts`: the parts of all batches, one after another.
        rows: One file for each array of the recipe, in its order: the rows of all batches.
    """

    recipe: dict[str, Any]
    batches: int
    counts: FileRecord
    parts: dict[str, FileRecord]
    rows: list[FileRecord]

    def files(self) -> list[FileRecord]:
        """Every file of the pack."""
        return [self.counts, *self.parts.values(), *self.rows]

    def publish(self, directory: Path) -> None:
        """Write it durably: the directory is a pack from then on (DiskRefusedError)."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "recipe": self.recipe,
            "batches": self.batches,
            "counts": self.counts.to_json(),
            "parts": {name: record.to_json() for name, record in self.parts.items()},
            "rows": [record.to_json() for record in self.rows],
        }
        publish_json(directory / PACK_NAME, document)


def read_pack_manifest(directory: Path) -> PackManifest | None:
    """Read what a pack says, and check the size and header of each file.

    Returns:
        The manifest; None where there is none: no pack, or an unfinished one.

    Raises:
        FormatError: It is damaged, or of a version that this Overspill does not read.
        StaleFileError: A file of the pack is gone or differs.
    """
    path = directory / PACK_NAME
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            text = file.read(_LARGEST_MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror}",
            path=str(path),
            errno=error.errno,
            remedy="check the path and its permissions, or pack the batches again",
        ) from error
    try:
        manifest = _decoded(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path} cannot be understood: {sentence_of(error)}",
            path=str(path),
            remedy="remove the directory, so that the batches are packed again",
        ) from error
    for record in manifest.files():
        check_file(directory, record)
    return manifest


def _decoded(held: dict[str, Any]) -> PackManifest:
    if held["format"] != FORMAT:
        raise ValueError(f"its format is {held['format']!r}, not {FORMAT!r}")
    if held["version"] != VERSION:
        raise ValueError(f"its version is {held['version']!r}; this Overspill reads {VERSION}")
    manifest = PackManifest(
        recipe=dict(held["recipe"]),
        batches=whole_count(held["batches"]),
        counts=FileRecord.from_json(held["counts"]),
        parts={name: FileRecord.from_json(part) for name, part in held["parts"].items()},
        rows=[FileRecord.from_json(record) for record in held["rows"]],
    )
    wanted = (manifest.batches, len(manifest.parts))
    if manifest.counts.shape != wanted or manifest.counts.dtype != "int64":
        raise ValueError(f"its counts are not int64 {wanted}")
    lengths = {name: record.shape[0] for name, record in manifest.parts.items()}
    if not manifest.batches and not manifest.parts and not manifest.rows:
        return manifest  # what a batch would have had was never told
    for (_, _, part), record in zip(manifest.recipe["arrays"], manifest.rows, strict=True):
        if record.shape[0] != lengths[part]:
            raise ValueError(f"{record.path} has another number of rows than {part!r} names")
    return manifest


def _owner(key: ArrayKey) -> str | list[str]:
    return key[0] if isinstance(key[0], str) else list(key[0])
