"""When spill files go: with their run, or earlier, by `discard` and at the end of a `spill_scope`.

A file is unlinked and never truncated: whoever still maps it, in whatever process, keeps reading
good data, and its blocks return to the disk with the last of these mappings.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from overspill.errors import DiskRefusedError, UnsupportedTensorError
from overspill.linux.identity import FileIdentity
from overspill.storage.spill_files import is_spill_file, remove_spill_file
from overspill.tensors.backing import file_behind

logger = logging.getLogger("overspill")


class SpillScope:
    """The files that were spilled within a `spill_scope`; made by it alone."""

    def __init__(self, outer: SpillScope | None = None) -> None:
        self._outer = outer
        self._files: dict[str, FileIdentity] = {}
        # A forked child that leaves the block by an exception must not free its parent's files.
        self._owner = os.getpid()

    def note(self, path: str, identity: FileIdentity) -> None:
        """Enter a file that was made within the scope."""
        self._files[path] = identity

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Let a tensor's file outlive the scope.

        Args:
            tensor: A tensor spilled in the scope, or anything else, which changes nothing.

        Returns:
            The same tensor. Within an outer scope its file now belongs to that one.
        """
        record = file_behind(tensor) if isinstance(tensor, torch.Tensor) else None
        if record is not None and record.path in self._files:
            identity = self._files.pop(record.path)
            if self._outer is not None:
                self._outer.note(record.path, identity)
        return tensor

    def close(self) -> None:
        """Free the files that were not kept.

        Raises:
            DiskRefusedError: Some could not be removed; the others were.
        """
        mine = self._owner == os.getpid()
        held, self._files = (self._files if mine else {}), {}
        refusals = []
        for path, identity in held.items():
            try:
                remove_spill_file(path, identity)
            except DiskRefusedError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]

    def __repr__(self) -> str:
        return f"SpillScope(files={len(self._files)})"


_SCOPE: ContextVar[SpillScope | None] = ContextVar("overspill_scope", default=None)


@contextmanager
def spill_scope() -> Iterator[SpillScope]:
    """Free, at the end of the block, the files of the tensors that were spilled within it.

    Covers what this thread (or task) spills or allocates on disk; threads and processes started
    within it are not covered. Scopes nest; a file belongs to the innermost. Tensors over the files
    stay readable as long as they live; handles to them become stale.

    Yields:
        The scope; ``scope.keep(t)`` lets the file of one tensor outlive it.

    Raises:
        DiskRefusedError: At the end, if a file could not be removed; the others were.
    """
    scope = SpillScope(_SCOPE.get())
    token = _SCOPE.set(scope)
    try:
        yield scope
    finally:
        _SCOPE.reset(token)
        scope.close()


def note_spill_file(path: str, identity: FileIdentity) -> None:
    """Enter a new spill file into the scope that the caller is in, if it is in one."""
    scope = _SCOPE.get()
    if scope is not None:
        scope.note(path, identity)


def discard(tensor: torch.Tensor) -> bool:
    """Free the file of a spilled tensor that nobody needs any more.

    The name goes at once, so that handles to it raise StaleFileError; the blocks go with the last
    tensor over the file, in this or any other process. Such tensors stay valid until then.
    Thread-safe, and between processes: of several that discard one file, one removes it.

    Args:
        tensor: A spilled tensor, or a view, whose whole file is meant.

    Returns:
        Whether a file was removed: False for a tensor in memory, and for one discarded before.

    Raises:
        UnsupportedTensorError: Not a tensor; or its file is no spill file but a dataset's or the
            user's own, which Overspill does not delete.
        DiskRefusedError: The file could not be removed.
    """
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedTensorError(
            f"not a tensor: {type(tensor).__name__}", remedy="convert it: torch.as_tensor(...)"
        )
    record = file_behind(tensor)
    if record is None:
        return False
    if not record.ours or not record.shared or not is_spill_file(record.path):
        raise UnsupportedTensorError(
            f"{record.path} is no spill file: it is a dataset's or your own",
            remedy="delete such files yourself, once nothing maps them",
        )
    removed = remove_spill_file(record.path, record.identity)
    if removed:
        logger.info("discarded %s (%d bytes)", record.path, record.nbytes)
    return removed
