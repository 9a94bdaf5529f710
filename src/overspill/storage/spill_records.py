"""What a spill file holds: dtype and shape, written on the file itself, for people who look.

An extended attribute, small enough to lie in the inode: no file more, no write more (it goes with
the inode that making the file has dirtied), nothing to keep in step, and gone with the file. Nobody
opens a tensor by it: handles carry their own dtype and shape. Where the file system has no such
attributes, nothing is recorded. What is read back may be anybody's text: it is taken only if it
describes exactly the bytes that are there.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass

ATTRIBUTE = "user.overspill.tensor"
_MOST_BYTES = 240
_RECORD = re.compile(r"([a-z][a-z0-9_]{0,31})((?: [0-9]{1,19}){0,64})")
_ITEM_BYTES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class TensorRecord:
    """What a spill file holds.

    Attributes:
        dtype: The dtype's name, as handles carry it.
        shape: The shape.
    """

    dtype: str
    shape: tuple[int, ...]


def record_tensor(fd: int, record: TensorRecord) -> bool:
    """Write down what a new spill file holds; one system call.

    Args:
        fd: The file, open for writing.
        record: What it holds.

    Returns:
        Whether it is recorded: False where the file system has no user attributes or no room for
        one, or the shape is longer than any that people have. The file is the same either way.
    """
    text = " ".join([record.dtype, *map(str, record.shape)]).encode()
    if len(text) > _MOST_BYTES or not hasattr(os, "setxattr"):
        return False
    try:
        os.setxattr(fd, ATTRIBUTE, text)
    except OSError:
        return False
    return True


def recorded_tensor(fd: int, nbytes: int) -> TensorRecord | None:
    """Read what was written down about a file.

    Args:
        fd: The file, open for reading.
        nbytes: Its size, which the record must come to.

    Returns:
        The record; None where there is none, or it cannot be true of this file.
    """
    try:
        text = os.getxattr(fd, ATTRIBUTE).decode("ascii", errors="replace")
    except (OSError, AttributeError):
        return None
    match = _RECORD.fullmatch(text)
    if match is None:
        return None
    shape = tuple(int(size) for size in match[2].split())
    if nbytes not in [math.prod(shape) * item for item in _ITEM_BYTES]:
        return None
    return TensorRecord(match[1], shape)
