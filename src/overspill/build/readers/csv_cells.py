"""What a cell of CSV can be: an id, text, a number, a truth; and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_INTEGER = re.compile(r"\s*-?[0-9]+\s*", re.ASCII)
_FITTING = re.compile(r"\s*(-?)0*([0-9]{1,19})\s*", re.ASCII)  # int() refuses thousands of digits
_LEAST, _MOST = -(2**63), 2**63 - 1
_TRUTHS = ("true", "True", "TRUE", "false", "False", "FALSE")


def what_is_wrong(cell: bytes, kind: str) -> str | None:
    """Why a cell is none of a kind: "id", "text", "int64", "float64" or "bool"; None if it is."""
    what = "an id" if kind in ("id", "text") else "a cell"
    if kind == "text":
        return _wrong_text(cell)
    text = cell.decode("utf-8", "replace")
    if not text.strip():
        return f"{what} is null"
    if kind == "bool":
        return None if text.strip() in _TRUTHS else "a cell is neither true nor false"
    if kind == "float64":
        return None if _is_float(text) else "a cell is not a number"
    if not _INTEGER.fullmatch(text):
        return f"{what} is not an integer"
    return None if _fits(text) else f"{what} does not fit 64 bits"


def kind_of_cells(cells: Sequence[bytes]) -> str:
    """What the first cells of a column seem to be; "float64" where they are nothing."""
    texts = [text for text in (cell.decode("utf-8", "replace").strip() for cell in cells) if text]
    if texts and all(_INTEGER.fullmatch(text) for text in texts):
        return "int64"
    return "bool" if texts and all(text in _TRUTHS for text in texts) else "float64"


def _wrong_text(cell: bytes) -> str | None:
    if not cell:
        return "an id is null"
    try:
        cell.decode()
    except UnicodeDecodeError:
        return "an id is not UTF-8"
    return None


def _fits(text: str) -> bool:
    digits = _FITTING.fullmatch(text)
    return digits is not None and _LEAST <= int(digits[1] + digits[2]) <= _MOST


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text
