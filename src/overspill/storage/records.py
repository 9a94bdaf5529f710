"""What the manifest says of one array file, and the dtypes that such a file can hold."""

from __future__ import annotations

import math
import os
import reprlib
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from overspill.errors import FormatError

# Name (numpy's where numpy has the type, torch's otherwise) -> safetensors' code, bytes an element.
STORED_DTYPES: dict[str, tuple[str, int]] = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "uint16": ("U16", 2),
    "int16": ("I16", 2),
    "uint32": ("U32", 4),
    "int32": ("I32", 4),
    "uint64": ("U64", 8),
    "int64": ("I64", 8),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "float32": ("F32", 4),
    "float64": ("F64", 8),
    "complex64": ("C64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
}
NAMES_BY_CODE = {code: name for name, (code, _) in STORED_DTYPES.items()}
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
DAMAGED = "it was cut or changed: copy it anew, or build again"
_OTHER_NAME = "give it another name; where it came from a file, that is damaged: make it again"
_MOST_BYTES = 2**63 - 1
_MOST_AXES: int = getattr(np, "MAXDIMS", 64)  # gone from numpy 2


def numpy_view_dtype(name: str) -> np.dtype[Any]:
    """The numpy type that views such a payload: itself, or unsigned bits where numpy lacks it."""
    if name not in STORED_DTYPES:
        raise _no_dtype(name)
    return np.dtype(_BITS.get(name, name)).newbyteorder("<")


def payload_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a payload; FormatError when no file could be that large."""
    if dtype not in STORED_DTYPES:
        raise _no_dtype(dtype)
    item = STORED_DTYPES[dtype][1]
    # What numpy cannot view is refused, empty or not. Each size is looked at before the product:
    # that of thousands of numbers from a file could take hours.
    if (
        len(shape) > _MOST_AXES
        or min(shape, default=0) < 0
        or max(shape, default=0) > _MOST_BYTES
        or math.prod(size or 1 for size in shape) * item > _MOST_BYTES
    ):
        raise FormatError(
            f"no array file can hold shape {reprlib.repr(shape)}",
            remedy=f"give at most {_MOST_AXES} axes, and less than 2**63 bytes in all",
        )
    return math.prod(shape) * item


@dataclass(frozen=True)
class FileRecord:
    """One array file of a dataset.

    Attributes:
        path: Relative to the dataset, with forward slashes.
        dtype: A name of `STORED_DTYPES`.
        shape: The array's shape.
        nbytes: Size of the whole file, header included.
        sha256: Hex digest of the payload; dtype and shape tell the header, byte for byte.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """The record as JSON holds it."""
        return asdict(self) | {"shape": list(self.shape)}

    @classmethod
    def from_json(cls, held: object) -> FileRecord:
        """Read a record, trusting nothing: FormatError where a field is missing or wrong."""
        try:
            record = cls(
                path=_typed(held["path"], str),  # type: ignore[index]
                dtype=_typed(held["dtype"], str),  # type: ignore[index]
                shape=tuple(_typed(n, int) for n in held["shape"]),  # type: ignore[index]
                nbytes=_typed(held["nbytes"], int),  # type: ignore[index]
                sha256=_typed(held["sha256"], str),  # type: ignore[index]
            )
        except (KeyError, TypeError, IndexError) as error:
            raise FormatError(
                f"a file record cannot be understood: {reprlib.repr(held)}", remedy=DAMAGED
            ) from error
        if payload_bytes(record.dtype, record.shape) > record.nbytes:
            raise FormatError(
                f"a file record contradicts itself: {reprlib.repr(held)}", remedy=DAMAGED
            )
        require_inside(record.path)
        return record


def require_inside(path: str) -> None:
    """Refuse a relative path that could leave the dataset's directory."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise FormatError(
            f"a path leaves the dataset's directory: {reprlib.repr(path)}", remedy=_OTHER_NAME
        )
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:  # half a surrogate pair, which JSON can hold
        raise FormatError(
            f"no file can have the path {reprlib.repr(path)}", remedy=_OTHER_NAME
        ) from error


def _no_dtype(name: str) -> FormatError:
    return FormatError(
        f"no array file can hold dtype {name!r}",
        remedy=f"convert it to one of {', '.join(STORED_DTYPES)}",
    )


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:  # bool is an int to isinstance
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value
