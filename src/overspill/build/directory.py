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
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from overspill.errors import DiskRefusedError, FormatError, OutputDirError
from overspill.linux.locks import lock_exclusive
from overspill.storage.manifest import MANIFEST_NAME, Manifest, publish_manifest
from overspill.storage.records import require_inside

_log = logging.getLogger("overspill")
MARKER_NAME = ".overspill-build"
SCRATCH = "scratch"  # where files that do not outlive the build go
_MAGIC = {"format": "overspill-build", "version": 1}


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
        self._finished = False

    def __enter__(self) -> BuildDirectory:
        try:
            self._made = _make_directories(self.path)
            _require_claimable(self.path)
            self._fd = _lock_marker(self.path / MARKER_NAME)
            self._begin()
        except OSError as error:
            self._give_up_claim()
            if isinstance(error, OutputDirError | DiskRefusedError):
                raise
            raise _refused(self.path, error) from error
        except BaseException:
            self._give_up_claim()
            raise
        return self

    def file(self, relative: str) -> Path:
        """The path of a file that the build is about to make; its directories are made.

        Raises:
            OutputDirError: Something else put a file there; it is not touched.
        """
        parts = Path(relative).parts
        for depth in range(1, len(parts)):
            directory = self.path.joinpath(*parts[:depth])
            if not directory.is_dir():
                self._note("/".join(parts[:depth]) + "/")
                self._guard(directory.mkdir)
        # Before it is listed: what is listed may be removed.
        if os.path.lexists(self.path / relative):
            raise _foreign(self.path, relative)
        self._note(relative)
        return self.path / relative

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
        self._guard(lambda: self._write_line({"step": step, "result": result}))

    def remove_scratch(self, name: str) -> None:
        """Remove what lies under a directory of the scratch space, and nothing that is not listed.

        Args:
            name: The directory, relative to the scratch space.
        """
        self._guard(lambda: _remove(self.path, _entries(self.path, f"{SCRATCH}/{name}/")))

    def publish(self, manifest: Manifest) -> None:
        """Publish the manifest, then drop the marker; every scratch file is gone by now.

        Files that something else put beside the build's own are left alone, and no dataset's part.

        Raises:
            OutputDirError: Such a file has the manifest's name or lies among the scratch files, or
                the directory was removed or replaced.
        """
        self._require_present()
        scratch = self.path / SCRATCH
        if scratch.is_dir():
            # A build that was resumed may have left what its steps no longer needed.
            self._guard(lambda: _remove(self.path, _entries(self.path, SCRATCH + "/")))
            strays = _files_in(scratch)
            if strays:
                raise _foreign(self.path, f"{SCRATCH}/{strays[0]}")
            if scratch.is_dir():
                self._guard(scratch.rmdir)
        if os.path.lexists(self.path / MANIFEST_NAME):
            raise _foreign(self.path, MANIFEST_NAME)
        self.file(MANIFEST_NAME + ".partial")
        publish_manifest(self.path, manifest)
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
            remedy="leave the directory alone until the build has ended, and build again",
        ) from cause

    def _note(self, entry: str) -> None:
        # Durable before the file exists: after a crash nothing is there that the list lacks.
        self._guard(lambda: self._write_line(entry))

    def _guard(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            raise _refused(self.path, error) from error

    def _begin(self) -> None:
        if self._resume and self._take_up():
            return
        remove_listed(self.path)
        strays = [name for name in _files_in(self.path) if name != MARKER_NAME]
        if strays:
            raise _foreign(self.path, strays[0])
        os.ftruncate(self._fd, 0)
        self._write_line(_MAGIC)
        self._write_line({"build": self._fingerprint})

    def _take_up(self) -> bool:
        """Go back to the last finished step; False where there is none."""
        lines = _journal(self.path)
        steps = [at for at, line in enumerate(lines) if _is_step(line)]
        if not steps:
            return False
        if lines[0] != {"build": self._fingerprint}:
            raise OutputDirError(
                f"{self.path} holds an unfinished build of other inputs or options",
                path=str(self.path),
                remedy="give the same ones, or build with resume=False, which starts over",
            )
        kept, rest = lines[: steps[-1] + 1], lines[steps[-1] + 1 :]
        _remove(self.path, [line for line in rest if isinstance(line, str)])
        text = b"".join(json.dumps(line).encode() + b"\n" for line in (_MAGIC, *kept))
        os.ftruncate(self._fd, len(text))
        os.fsync(self._fd)
        self._steps = {line["step"]: line["result"] for line in kept if _is_step(line)}
        _log.info("%s: resumed after %d finished steps", self.path, len(steps))
        return True

    def _write_line(self, entry: object) -> None:
        line = json.dumps(entry).encode() + b"\n"
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


def is_unfinished_build(path: Path) -> bool:
    """Whether a directory holds the marker of an Overspill build."""
    try:
        with (path / MARKER_NAME).open("rb") as file:
            first = file.readline(1000)
    except OSError:
        return False
    # A cut line, or none: killed, or refused by the disk, while the marker was being made.
    if (json.dumps(_MAGIC).encode() + b"\n").startswith(first):
        return True
    try:
        return bool(json.loads(first) == _MAGIC)
    except ValueError:
        return False


def remove_listed(path: Path) -> None:
    """Remove what an unfinished build's marker lists, in reverse order, and nothing else.

    Raises:
        FormatError: The list names something outside the directory.
    """
    _remove(path, _entries(path, ""))


def _journal(path: Path) -> list[Any]:
    """What a marker says after its first line: files as strings, all else as objects."""
    lines = (path / MARKER_NAME).read_bytes().split(b"\n")[1:]
    found = []
    for line in lines[:-1]:  # what follows the last line feed was cut by a crash
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                require_inside(entry)
        except (ValueError, TypeError, AttributeError) as error:
            raise FormatError(f"{path / MARKER_NAME} is damaged", path=str(path)) from error
        found.append(entry)
    return found


def _is_step(line: object) -> bool:
    return isinstance(line, dict) and "step" in line


def _entries(path: Path, prefix: str) -> list[str]:
    return [line for line in _journal(path) if isinstance(line, str) and line.startswith(prefix)]


def _remove(path: Path, entries: list[str]) -> None:
    for entry in reversed(entries):
        target = path / entry
        if target.parent.resolve() != (path.resolve() / entry).parent:
            raise FormatError(f"{target} lies behind a link", path=str(target))
        if entry.endswith("/"):
            if target.is_dir() and not any(target.iterdir()):
                target.rmdir()
        else:
            target.unlink(missing_ok=True)


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


def _require_claimable(path: Path) -> None:
    if not path.is_dir():
        raise OutputDirError(f"{path} is not a directory", path=str(path))
    if (path / MANIFEST_NAME).exists():
        raise OutputDirError(
            f"{path} holds a finished dataset",
            path=str(path),
            remedy="open it with open_dataset, remove it, or choose another directory",
        )
    entries = sorted(entry.name for entry in path.iterdir())
    if entries and not is_unfinished_build(path):
        raise OutputDirError(
            f"{path} holds {entries[0]!r} and is not an unfinished Overspill build",
            path=str(path),
            remedy="choose an empty or absent directory",
        )


def _lock_marker(marker: Path) -> int:
    fd = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        # The inode is compared after locking: the build that held the lock may have removed it.
        if lock_exclusive(fd, blocking=False) and os.path.samestat(os.fstat(fd), marker.stat()):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    raise OutputDirError(
        f"another build is writing {marker.parent}",
        path=str(marker.parent),
        remedy="wait for it to end, or choose another directory",
    )


def _refused(path: Path, error: OSError) -> DiskRefusedError:
    return DiskRefusedError(
        f"{path} cannot be written: {error.strerror}",
        path=str(path),
        errno=error.errno,
        remedy="choose a directory that can be written and has room",
    )
