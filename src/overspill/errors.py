"""The errors Overspill raises: each names what was wanted, what there is, and what to do.

Every leaf is also the built-in it resembles, so ``except OSError`` or ``except ValueError`` keeps
working, and every leaf survives pickling, so that a worker's error reaches its parent whole.
"""

from __future__ import annotations

from typing import Any

from overspill.units import format_bytes


class OverspillError(Exception):
    """Base of every error that Overspill raises on purpose.

    Args:
        message: What went wrong, in one sentence.
        path: The file or directory concerned.
        errno: The system's error number, where a system call failed.
        needed_bytes: What the operation wanted.
        available_bytes: What there was.
        remedy: What the person can do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        errno: int | None = None,
        needed_bytes: int | None = None,
        available_bytes: int | None = None,
        remedy: str | None = None,
    ) -> None:
        # One argument only: OSError would take (errno, text) apart and lose the fields below.
        super().__init__(message)
        self.message = message
        self.path = path
        self.errno = errno
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.message]
        if self.path is not None and self.path not in self.message:
            parts.append(f"path: {self.path}")
        if self.needed_bytes is not None:
            parts.append(f"needed: {format_bytes(self.needed_bytes)}")
        if self.available_bytes is not None:
            parts.append(f"available: {format_bytes(self.available_bytes)}")
        if self.remedy is not None:
            parts.append(f"remedy: {self.remedy}")
        return "; ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        # errno is a slot of OSError and not in __dict__, so it travels by name.
        return _rebuild, (type(self), self.message, {**self.__dict__, "errno": self.errno})


def _rebuild(kind: type[OverspillError], message: str, fields: dict[str, Any]) -> OverspillError:
    error = kind(message)
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def sentence_of(error: BaseException) -> str:
    """What an error says, to be quoted in the message of another that has a remedy of its own."""
    return error.message if isinstance(error, OverspillError) else str(error)


class SettingsError(OverspillError, ValueError):
    """A setting or an environment variable cannot be understood."""


class SpillDirError(OverspillError, OSError):
    """The spill directory cannot be used: unwritable, memory in disguise, ...."""


class DiskRefusedError(OverspillError, OSError):
    """The disk could not reserve, write or sync the bytes; nothing was left behind."""


class MappingError(OverspillError, OSError):
    """The system refused to map a file, or to act on a mapping."""


class StaleFileError(OverspillError, OSError):
    """A file is gone, was replaced, or no longer has the size that its handle recorded."""


class NoRoomError(OverspillError, MemoryError):
    """No home for the bytes could be had without risking a kill."""


class UnsupportedTensorError(OverspillError, TypeError):
    """The tensor or dtype cannot live in a mapped file."""


class InputError(OverspillError, ValueError):
    """Input data is wrong.

    Args:
        message: What is wrong, in one sentence.
        path: The input file.
        row: The row in that file, counted as its reader documents.
        column: The column's name or number.
        value: The offending value, as text.
        remedy: What to do about it.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        row: int | None = None,
        column: str | None = None,
        value: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, path=path, remedy=remedy)
        self.row = row
        self.column = column
        self.value = value

    def __str__(self) -> str:
        place = [
            f"{name} {held}"
            for name, held in (("row", self.row), ("column", self.column), ("value", self.value))
            if held is not None
        ]
        told = super().__str__()
        return f"{told} ({', '.join(place)})" if place else told


class OutputDirError(OverspillError, OSError):
    """The output directory of a build holds something that the build must not touch."""


class FormatError(OverspillError, ValueError):
    """A dataset, array file or manifest is damaged, foreign or of an unknown version."""


class BuildFailedError(OverspillError, RuntimeError):
    """The build's own process ended without a result, for example killed by a signal."""


class UnavailableError(OverspillError, RuntimeError):
    """Something that this system, or this installation, does not offer."""


class ClusterError(OverspillError, ConnectionError):
    """A machine of a cluster, or what it holds, cannot be reached, or not in time."""
