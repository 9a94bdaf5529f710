"""The header of a .npy array, in a file or in an archive: read in bounded memory, never executed.

numpy reads as many bytes as a header says that it has, up to 4 GiB, before it looks at them; in an
archive they may come out of a few kilobytes.
"""

from __future__ import annotations

import tokenize
from dataclasses import dataclass
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy_format

# numpy refuses longer ones unless told to trust the file: they could crash the parser.
LONGEST_HEADER_BYTES = 10_000


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array, versions 1 and 2; the file then stands at the first element.

    Args:
        file: At the array's start.

    Returns:
        Shape, whether the first axis varies fastest, and dtype.

    Raises:
        ValueError: It is damaged, longer than any that numpy writes, or of another version.
    """
    bounded = cast("IO[bytes]", _Bounded(file))
    try:
        version = npy_format.read_magic(bounded)
        if version == (1, 0):
            shape, fortran, dtype = npy_format.read_array_header_1_0(bounded)
        elif version == (2, 0):
            shape, fortran, dtype = npy_format.read_array_header_2_0(bounded)
        else:
            told = ".".join(map(str, version))
            raise ValueError(f"it has .npy version {told}; 1.0 and 2.0 are read")
    except (SyntaxError, tokenize.TokenError, TypeError, MemoryError, RecursionError) as error:
        # MemoryError: the parser's own, of brackets that are nested too deeply.
        raise ValueError(f"its header cannot be understood: {error}") from error
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"no array has the shape {shape}")
    return shape, fortran, dtype


@dataclass
class _Bounded:
    """A file from which no more is read at once than a header may have."""

    file: IO[bytes]

    def read(self, nbytes: int) -> bytes:
        if nbytes > LONGEST_HEADER_BYTES:
            raise ValueError(
                f"its header has {nbytes} bytes, where {LONGEST_HEADER_BYTES} are the most"
            )
        return self.file.read(nbytes)
