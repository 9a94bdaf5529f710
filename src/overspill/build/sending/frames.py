"""What travels through the pipe from the caller's process to the build's, at both of its ends.

A table of contents comes first, then one stream after another, in one order that both ends keep:
there is nothing to choose, so nothing to lock each other in. A stream is an opening, frames of
data, an empty frame, and a closing that says what the data was. So neither a length nor a type need
be known before, and a sender that dies cannot be taken for one that came to its end.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from overspill.build.remedies import SENT_AGAIN
from overspill.errors import FormatError

PIPE_OPTION = "--streams"  # of the build's process: the number of its end of the pipe
# As the length of a frame: the sender gave up. No frame is as long.
GAVE_UP = 2**64 - 1
NPY_HEADER_BYTES = 4096  # the payload begins on a page


def frame(nbytes: int) -> bytes:
    """What goes before so many bytes of data; before none, the end of a stream."""
    return nbytes.to_bytes(8, "little")


def note(held: object) -> bytes:
    """JSON, to go as a frame of its own."""
    return json.dumps(held).encode()


class SenderGoneError(EOFError):
    """The pipe ended, or its sender gave up, before all was there."""


class FrameReader:
    """The reading end of the pipe.

    Args:
        fd: The pipe, which it does not own.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._left = 0
        self._ended = True

    def note(self) -> Any:
        """Read a frame of JSON; SenderGoneError where there is none."""
        text = bytearray(self._length())
        self._exactly(memoryview(text))
        return json.loads(text)

    def begin(self) -> None:
        """Stand before the first frame of a stream."""
        self._left, self._ended = 0, False

    def fill(self, out: memoryview) -> int:
        """Fill a buffer across frames; returns less than its size at the stream's end only."""
        done = 0
        while done < len(out):
            if self._left == 0:
                self._next_frame()
            if self._ended:
                break
            part = out[done : done + self._left]
            self._exactly(part)
            self._left -= len(part)
            done += len(part)
        return done

    def _next_frame(self) -> None:
        if not self._ended:
            self._left = self._length()
            self._ended = self._left == 0

    def _length(self) -> int:
        held = bytearray(8)
        self._exactly(memoryview(held))
        length = int.from_bytes(held, "little")
        if length == GAVE_UP:
            raise SenderGoneError
        return length

    def _exactly(self, out: memoryview) -> None:
        done = 0
        while done < len(out):
            count = os.readv(self._fd, [out[done:]])
            if count == 0:
                raise SenderGoneError
            done += count


def npy_closing(dtype: np.dtype[Any], shape: tuple[int, ...], *, fortran: bool) -> dict[str, Any]:
    """What a stream of raw elements was, for its closing."""
    return {"descr": npy_format.dtype_to_descr(dtype), "shape": shape, "fortran": fortran}


def require_whole(closing: dict[str, Any], nbytes: int) -> None:
    """Refuse data that is not as long as its closing says.

    Raises:
        FormatError: It names both lengths.
    """
    shape = tuple(closing["shape"])
    wanted = math.prod(shape) * np.dtype(_descr(closing)).itemsize
    if wanted != nbytes:
        raise FormatError(
            f"{nbytes} bytes were sent where shape {shape} takes {wanted}", remedy=SENT_AGAIN
        )


def _descr(closing: dict[str, Any]) -> Any:
    """The type as numpy wants it: JSON has lists for the fields' tuples."""
    descr = closing["descr"]
    return [tuple(field) for field in descr] if isinstance(descr, list) else descr


def npy_header(closing: dict[str, Any], nbytes: int) -> bytes:
    """The header of a .npy file of so many bytes of data, `NPY_HEADER_BYTES` long.

    Raises:
        FormatError: The data is not as long as dtype and shape say.
    """
    require_whole(closing, nbytes)
    descr, shape = _descr(closing), tuple(closing["shape"])
    held = {"descr": descr, "fortran_order": bool(closing["fortran"]), "shape": shape}
    length = NPY_HEADER_BYTES - len(npy_format.MAGIC_PREFIX) - 4
    text = repr(held).encode("latin1").ljust(length - 1) + b"\n"
    return npy_format.magic(1, 0) + length.to_bytes(2, "little") + text
