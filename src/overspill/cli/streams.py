"""The three standard streams, as they may be: closed, without a reader, of a narrow encoding."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper


def prepare_streams() -> None:
    """Open what is closed, and let every name be printed in some way.

    A file that the command opens must not become its standard output; a name that is no text, or
    none in this encoding, must not end it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def forget_reader() -> None:
    """After a closed pipe or a full disk: what is left to flush goes nowhere, without an error."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            try:
                stream.flush()
            except OSError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
