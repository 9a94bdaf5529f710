"""Documents that are there whole or not at all, and what is made of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from overspill.errors import FormatError
from overspill.storage.json_files import publish_json, read_document

FORM = {"form": "a form", "version": 3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    publish_json(tmp_path / "held.json", {"format": "a form", "version": 3, "held": [1, 2]})
    return tmp_path / "held.json"


def test_a_document_becomes_what_it_stands_for(path: Path) -> None:
    assert read_document(path, lambda held: sum(held["held"]), **FORM) == 3  # type: ignore[arg-type]


def nested(depth: int) -> Any:
    return nested(depth + 1)


@pytest.mark.parametrize(
    "decode",
    [lambda held: held["other"], lambda held: int("x"), lambda held: held.other, nested, len],
)
def test_what_cannot_be_understood_names_the_file(path: Path, decode: Callable[..., Any]) -> None:
    if decode is len:
        path.write_bytes(path.read_bytes().replace(b"a form", b"another"))
    if decode is nested:
        decode = lambda held: nested(0)  # noqa: E731
    with pytest.raises(FormatError, match=r"held\.json cannot be understood") as caught:
        read_document(path, decode, **FORM)  # type: ignore[arg-type]
    assert caught.value.path == str(path) and caught.value.remedy


def test_no_more_is_read_than_was_said(path: Path) -> None:
    size = path.stat().st_size
    assert read_document(path, len, most_bytes=size, **FORM) == 3  # type: ignore[arg-type]
    with pytest.raises(FormatError):
        read_document(path, len, most_bytes=size - 3, **FORM)  # type: ignore[arg-type]


def test_what_is_no_file_is_the_caller_s_to_explain(path: Path) -> None:
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_document(path, len, **FORM)  # type: ignore[arg-type]
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_document(path, len, **FORM)  # type: ignore[arg-type]
