"""The output directory of a build: claimed, journalled, and cleaned up by what the journal lists.

A marker file, locked for as long as the build runs, says that the directory is an unfinished
Overspill build and lists every file and directory the build made, each before it is made, and
between them the steps that are finished, with their results. Starting over, or giving up, removes
what is listed and nothing else; resuming removes what is listed after the last finished step. The
manifest is published before the marker goes, so a directory is at any moment either unfinished (a
marker, no manifest) or a dataset.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from overspill.build.journal import (
    MAGIC,
    NESTED,
    is_step,
    listed_entries,
    lock_marker,
    read_journal,
    remove_entries,
    remove_listed,
)
from overspill.build.journal import MARKER_NAME as MARKER_NAME
from overspill.build.journal import SCRATCH as SCRATCH
from overspill.build.journal import is_unfinished_build as is_unfinished_build
from overspill.build.remedies import DIRECTORY_ALONE
from overspill.errors import DiskRefusedError, FormatError, OutputDirError
from overspill.storage.arrays import ArrayWriter, sync_directory
from overspill.storage.manifest import MANIFEST_NAME, Manifest, publish_manifest
from overspill.storage.partition_manifest import (
    PARTITION_NAME,
    PartitionManifest,
    publish_partition,
)

_log = logging.getLogger("overspill")


class BuildDirectory:
    """A claimed output directory; leaving the block without `publish` undoes the build.

    Args:
        path: Absent, empty, or an unfinished build, which is started over or resumed.
        fingerprint: Tells builds of other inputs or options apart.
        resume: Whether an unfinished build of the same fingerprint is taken up where it stopped.

    Raises:
        OutputDirError: It holds something else, a finished dataset, a build that still runs, or,
            to be resumed, one of another fingerprint.
        DiskRefusedError: The directory cannot be written.
    """

    def __init__(self, path: str | Path, *, fingerprint: str = "", resume: bool = False) -> None:
        self.path = Path(path)
        self._fingerprint, self._resume = fingerprint, resume
        self._steps: dict[str, Any] = {}
        self._fd = -1
        self._made: list[Path] = []
        # Where a directory, or the marker, was made: array files make only their own names durable.
        self._unsynced: set[Path] = set()
        self._finished = False

    def __enter__(self) -> BuildDirectory:
        try:
            self._made = _make_directories(self.path)
            require_claimable(self.path)
            self._unsynced = _readable_parents(self._made) | {self.path}
            self._fd = lock_marker(self.path / MARKER_NAME)
            self._require_unpublished()
            self._begin()
        except OSError as error:
            self._give_up_claim()
            if isinstance(error, OutputDirError | DiskRefusedError):
                raise
            raise unwritable(self.path, error) from error
        except BaseException:
            self._give_up_claim()
            raise
        return self

    def file(self, relative: str) -> Path:
        """The path of a file that the build is about to make; its directories are made.

        Raises:
            OutputDirError: Something else put a file there; it is not touched.
        """
        return self.files([relative])[0]

    def files(self, relatives: Iterable[str]) -> list[Path]:
        """The paths of several files, listed by one write to the journal.

        Raises:
            OutputDirError: As `file`.
        """
        wanted = list(relatives)
        # Before it is listed: what is listed may be removed.
        for relative in wanted:
            if os.path.lexists(self.path / relative):
                raise _foreign(self.path, relative)
        self._make_parents(wanted)
        self._note(*wanted)
        return [self.path / relative for relative in wanted]

    def array(
        self, relative: str, *, dtype: str, shape: tuple[int, ...], at_most: bool = False
    ) -> ArrayWriter:
        """The writer of an array file that the build is about to make; see `ArrayWriter`.

        Raises:
            OutputDirError: As `file`.
        """
        target, _ = self.files([relative, relative + ".partial"])
        return ArrayWriter(target, dtype=dtype, shape=shape, record_path=relative, at_most=at_most)

    def nested(self) -> Path:
        """An empty directory in the scratch space, for a build of its own inside of this one.

        It is removed with the scratch space, by what its own marker or manifest lists.
        """
        self._make_parents([NESTED])
        return self.path / NESTED

    def finished(self, step: str) -> Any:
        """The result of a step that an earlier process finished; None where it is still to do."""
        return self._steps.get(step)

    def finish(self, step: str, result: Any) -> None:
        """Note durably that a step is finished: its files are complete, and so is its result.

        Args:
            step: Its name, used once a build.
            result: What the next steps need of it, as JSON holds it.
        """
        self._steps[step] = result
        self._sync_names()
        self._guard(lambda: self._write_line({"step": step, "result": result}))

    def remove_scratch(self, name: str) -> None:
        """Remove what lies under a directory of the scratch space, and nothing that is not listed.

        Args:
            name: The directory, relative to the scratch space.
        """
        self._guard(
            lambda: remove_entries(self.path, listed_entries(self.path, f"{SCRATCH}/{name}/"))
        )

    def publish(self, manifest: Manifest | PartitionManifest) -> None:
        """Publish the manifest, then drop the marker; every scratch file is gone by now.

        Files that something else put beside the build's own are left alone, and no dataset's part.

        Raises:
            OutputDirError: Such a file has the manifest's name or lies among the scratch files, or
                the directory was removed or replaced.
        """
        if isinstance(manifest, Manifest):
            self.publish_as(MANIFEST_NAME, partial(publish_manifest, self.path, manifest))
        else:
            self.publish_as(PARTITION_NAME, partial(publish_partition, self.path, manifest))

    def publish_as(self, name: str, write: Callable[[], None]) -> None:
        """As `publish`, for what tells of the files by another name.

        Args:
            name: What is published; while it is written it has ".partial" after its name.
            write: Writes it, durably.

        Raises:
            OutputDirError: As `publish`.
        """
        self._require_present()
        scratch = self.path / SCRATCH
        if scratch.is_dir():
            # A build that was resumed may have left what its steps no longer needed.
            self._guard(lambda: remove_entries(self.path, listed_entries(self.path, SCRATCH + "/")))
            strays = _files_in(scratch)
            if strays:
                raise _foreign(self.path, f"{SCRATCH}/{strays[0]}")
            if scratch.is_dir():
                self._guard(scratch.rmdir)
        if os.path.lexists(self.path / name):
            raise _foreign(self.path, name)
        self.file(name + ".partial")
        self._sync_names()
        write()
        self._finished = True
        self._guard((self.path / MARKER_NAME).unlink)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not self._finished:
                self._undo(error)
        finally:
            self._give_up_claim()

    def _require_unpublished(self) -> None:
        """Look again, now that nobody else can publish: whoever held the lock may have done so."""
        try:
            require_claimable(self.path)
        except OutputDirError:
            if os.fstat(self._fd).st_size == 0:  # it was made to be locked
                (self.path / MARKER_NAME).unlink()
            raise

    def _undo(self, error: BaseException | None) -> None:
        """Remove what was made; what goes wrong here must not hide why the build ended."""
        if isinstance(error, OSError):
            self._require_present(error)
        try:
            remove_listed(self.path)
            (self.path / MARKER_NAME).unlink(missing_ok=True)
        except (OSError, FormatError) as failure:
            if error is None:
                raise
            _log.warning("%s could not be cleaned up: %s", self.path, failure)

    def _require_present(self, cause: OSError | None = None) -> None:
        """Refuse to go on where the marker that is locked no longer lies in the directory."""
        try:
            held = (self.path / MARKER_NAME).stat(follow_symlinks=False)
            if os.path.samestat(os.fstat(self._fd), held):
                return
        except OSError as failure:
            cause = cause or failure
        raise OutputDirError(
            f"{self.path} was removed or replaced while the build wrote it",
            path=str(self.path),
            remedy=DIRECTORY_ALONE,
        ) from cause

    def _make_parents(self, relatives: list[str]) -> None:
        missing: dict[str, None] = {}
        for relative in relatives:
            parts = relative.split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                directory = "/".join(parts[:depth])
                if directory not in missing and not (self.path / directory).is_dir():
                    missing[directory] = None
        self._note(*(directory + "/" for directory in missing))
        for directory in missing:
            self._guard((self.path / directory).mkdir)
            self._unsynced.add((self.path / directory).parent)

    def _sync_names(self) -> None:
        """Make the names of directories durable, without which what lies in them is not."""
        for directory in sorted(self._unsynced):
            if directory.is_dir():  # scratch space may be gone
                self._guard(partial(sync_directory, directory))
        self._unsynced.clear()

    def _note(self, *entries: str) -> None:
        # Durable before the file exists: after a crash nothing is there that the list lacks.
        if entries:
            self._guard(lambda: self._write_line(*entries))

    def _guard(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _begin(self) -> None:
        if self._resume and self._take_up():
            return
        remove_listed(self.path)
        strays = [name for name in _files_in(self.path) if name != MARKER_NAME]
        if strays:
            raise _foreign(self.path, strays[0])
        os.ftruncate(self._fd, 0)
        self._write_line(MAGIC)
        self._write_line({"build": self._fingerprint})

    def _take_up(self) -> bool:
        """Go back to the last finished step; False where there is none."""
        lines = read_journal(self.path)
        steps = [at for at, line in enumerate(lines) if is_step(line)]
        if not steps:
            return False
        if lines[0] != {"build": self._fingerprint}:
            raise OutputDirError(
                f"{self.path} holds an unfinished build of other inputs or options",
                path=str(self.path),
                remedy="give the same ones, or build with resume=False, which starts over",
            )
        kept, rest = lines[: steps[-1] + 1], lines[steps[-1] + 1 :]
        remove_entries(self.path, [line for line in rest if isinstance(line, str)])
        text = b"".join(json.dumps(line).encode() + b"\n" for line in (MAGIC, *kept))
        os.ftruncate(self._fd, len(text))
        os.fsync(self._fd)
        self._steps = {line["step"]: line["result"] for line in kept if is_step(line)}
        _log.info("%s: resumed after %d finished steps", self.path, len(steps))
        return True

    def _write_line(self, *entries: object) -> None:
        line = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
        while line:  # a nearly full disk takes a part
            line = line[os.write(self._fd, line) :]
        os.fsync(self._fd)

    def _give_up_claim(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if not self._finished:
            for directory in reversed(self._made):
                if directory.is_dir() and not any(directory.iterdir()):
                    directory.rmdir()


def _files_in(path: Path) -> list[str]:
    """What lies in a directory at any depth, directories after the files, relative to it."""
    found = sorted((entry.is_dir(), str(entry.relative_to(path))) for entry in path.rglob("*"))
    return [name for _, name in found]


def _foreign(path: Path, name: str) -> OutputDirError:
    return OutputDirError(
        f"{path} holds {name!r}, which the build in it did not make",
        path=str(path),
        remedy="move it away, or choose another directory",
    )


def _make_directories(path: Path) -> list[Path]:
    for place in (path, *path.parents):
        if place.is_symlink() and not place.exists():
            raise OutputDirError(
                f"{place} is a link to {place.readlink()}, which does not exist",
                path=str(path),
                remedy="make what it points to, or remove the link",
            )
    missing = [parent for parent in (path, *path.parents) if not parent.exists()]
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
    return list(reversed(missing))


def _readable_parents(directories: list[Path]) -> set[Path]:
    """Where directories were made, as far as these can be opened: not all that can be written."""
    return {place.parent for place in directories if os.access(place.parent, os.R_OK)}


def require_claimable(path: Path) -> None:
    """Refuse a directory that a build could not take.

    Raises:
        OutputDirError: It holds a dataset, or what is no unfinished build.
    """
    if not path.is_dir():
        raise OutputDirError(
            f"{path} is not a directory",
            path=str(path),
            remedy="choose another directory, or move away what stands there",
        )
    for name, what in ((MANIFEST_NAME, "dataset"), (PARTITION_NAME, "partition")):
        if (path / name).exists():
            raise OutputDirError(
                f"{path} holds a finished {what}",
                path=str(path),
                remedy=f"open it with open_{what}, remove it, or choose another directory",
            )
    entries = sorted(entry.name for entry in path.iterdir())
    if entries and not is_unfinished_build(path):
        raise OutputDirError(
            f"{path} holds {entries[0]!r} and is not an unfinished Overspill build",
            path=str(path),
            remedy="choose an empty or absent directory",
        )


def unwritable(path: Path, error: OSError) -> DiskRefusedError:
    """The error of a directory that cannot be written."""
    return DiskRefusedError(
        f"{path} cannot be written: {error.strerror}",
        path=str(path),
        errno=error.errno,
        remedy="choose a directory that can be written and has room",
    )
