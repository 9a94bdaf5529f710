"""Edges and rows as the readers give them, for tests of each format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.build.readers.edges import EdgeReader, RawIds, Strings, open_edges
from overspill.build.readers.source import SourceFile
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError


def opened(path: Path, *, text: tuple[bool, bool] = (False, False), **spec: Any) -> EdgeReader:
    return open_edges(SourceFile.check(str(path)), EdgeSpec(**spec), text=text)


def plain(ids: RawIds) -> list[Any]:
    """Ids as Python's own, after the buffers that they lie in are gone."""
    if isinstance(ids, Strings):
        assert ids.offsets.dtype == np.int64 and ids.data.dtype == np.uint8
        return [ids.text(place) for place in range(len(ids))]
    assert ids.dtype == np.int64
    return ids.tolist()


def edges_of(
    path: Path, *, most: int = 1 << 16, text: tuple[bool, bool] = (False, False), **spec: Any
) -> tuple[list[Any], list[Any]]:
    """All edges of a file; the properties that every reader keeps are asserted on the way."""
    reader = opened(path, text=text, **spec)
    sources: list[Any] = []
    targets: list[Any] = []
    done = 0
    for chunk in reader.chunks(most):
        assert len(chunk.sources) == len(chunk.targets) <= most
        assert chunk.first == len(sources)
        assert done <= chunk.bytes_done <= reader.nbytes == path.stat().st_size
        done = chunk.bytes_done
        for ids, is_text in zip((chunk.sources, chunk.targets), reader.text, strict=True):
            assert isinstance(ids, Strings) == is_text
        sources += plain(chunk.sources)
        targets += plain(chunk.targets)
    assert reader.count in (None, len(sources))
    return sources, targets


def refused(path: Path, **options: Any) -> InputError:
    """The error of reading a file to its end."""
    with pytest.raises(InputError) as caught:
        edges_of(path, **options)
    assert caught.value.path == str(path) and path.name in str(caught.value)
    return caught.value


def place(error: InputError) -> tuple[int | None, str | None, str | None]:
    return error.row, error.column, error.value


def rows_of(path: Path, names: Sequence[str], *, most_bytes: int = 1 << 16, **spec: Any) -> Any:
    """Further columns of an edge file, as one array."""
    return gathered(opened(path, **spec).rows(tuple(names)), most_bytes)


def gathered(source: Any, most_bytes: int = 1 << 16) -> Any:
    """All rows of a `InputRows`."""
    found = []
    row_bytes = int(np.prod(source.row_shape)) * np.dtype(source.dtype).itemsize
    for piece in source.pieces(most_bytes):
        assert piece.dtype == np.dtype(source.dtype) and piece.shape[1:] == source.row_shape
        assert len(piece) == 1 or len(piece) * row_bytes <= most_bytes
        found.append(piece.copy())
    empty = np.empty((0, *source.row_shape), source.dtype)
    whole = np.concatenate([empty, *found])
    assert source.count in (None, len(whole))
    return whole
