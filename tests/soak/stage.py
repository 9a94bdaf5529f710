"""The small machine: a memory group, a disk and a /dev/shm of its own, all gone afterwards.

Disk and /dev/shm are mounted in a namespace of the supervisor's, so that they go with its last
process however that ends; of a supervisor that is killed, the disk's image stays in the temporary
directory, and an empty group.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from leaks import SHM, isolate_shared_memory
from overspill.linux.confine import MemoryGroup

MEMORY_BYTES = 640 << 20
DISK_BYTES = 192 << 20
SHM_BYTES = 24 << 20
SMALLEST_SPILL_BYTES = 64 << 10
_LONGEST_TEMPORARY = 40


@dataclass(frozen=True)
class Stage:
    """Where everything lies; `place` alone is not on the small disk."""

    place: Path
    disk: Path
    group: MemoryGroup

    @classmethod
    def make(cls) -> Self:
        """Make it; the calling process, which must have one thread, moves to the namespace."""
        if not isolate_shared_memory(SHM_BYTES):
            raise SystemExit("soak: no mounts of its own can be made; run it as root")
        # Where a socket's path is too long, torch's loaders wait for ever for what cannot be sent.
        if len(tempfile.gettempdir()) > _LONGEST_TEMPORARY:
            raise SystemExit(f"soak: TMPDIR is longer than {_LONGEST_TEMPORARY} characters")
        place = Path(tempfile.mkdtemp(prefix="overspill-soak-"))
        image, disk = place / "disk.img", place / "disk"
        image.touch()
        os.truncate(image, DISK_BYTES)
        # No reserve for root: the soak fills the disk as root and must meet its end.
        run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)])
        disk.mkdir()
        run(["mount", "-o", "loop", str(image), str(disk)])
        shutil.rmtree(disk / "lost+found")
        stage = cls(place, disk, MemoryGroup.create(MEMORY_BYTES, name_hint="overspill-soak"))
        if stage.group.directory is None:
            raise SystemExit("soak: a group that running processes can enter is wanted")
        for path in (stage.spill, stage.data, stage.packs, stage.inputs, stage.reports, stage.tmp):
            path.mkdir()
        return stage

    @property
    def spill(self) -> Path:
        return self.disk / "spill"

    @property
    def data(self) -> Path:
        return self.disk / "data"

    @property
    def packs(self) -> Path:
        return self.disk / "packs"

    @property
    def filler(self) -> Path:
        return self.disk / "filler"

    @property
    def inputs(self) -> Path:
        return self.place / "inputs"

    @property
    def reports(self) -> Path:
        return self.place / "reports"

    @property
    def tmp(self) -> Path:
        return self.place / "tmp"

    @property
    def references(self) -> Path:
        return self.place / "references.json"

    def enter(self) -> None:
        """Move this process, and what it starts from here on, into the memory group."""
        (self._directory / "cgroup.procs").write_text(str(os.getpid()))

    def members(self) -> list[int]:
        """The processes of the group."""
        return [int(pid) for pid in (self._directory / "cgroup.procs").read_text().split()]

    def environment(self) -> dict[str, str]:
        """What a process on the stage is told through variables."""
        return {
            "OVERSPILL_DIR": str(self.spill),
            "OVERSPILL_MIN_BYTES": str(SMALLEST_SPILL_BYTES),
            "TMPDIR": str(self.tmp),
            # A build that hangs is ended by SIGABRT, and then says where it was.
            "PYTHONFAULTHANDLER": "1",
        }

    def _end_members(self) -> None:
        """End who still plays: nobody, unless the supervisor was told to end."""
        while members := self.members():
            for pid in members:
                with suppress(ProcessLookupError):
                    fd = os.pidfd_open(pid)
                    try:
                        signal.pidfd_send_signal(fd, signal.SIGKILL)
                        select.select([fd], [], [])
                    finally:
                        os.close(fd)

    @property
    def _directory(self) -> Path:
        assert self.group.directory is not None
        return self.group.directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_members()
        self.group.close()
        run(["umount", str(self.disk)])
        shutil.rmtree(self.place)


def run(argv: list[str]) -> None:
    """Run a command that must end well; what it said is in the error."""
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"soak: {' '.join(argv)}: {done.stderr.strip()}")


def free_bytes(path: Path) -> int:
    """What a file system still takes."""
    held = os.statvfs(path)
    return held.f_bavail * held.f_frsize


def used_bytes(path: Path) -> int:
    """What a file system holds, its own books included."""
    held = os.statvfs(path)
    return (held.f_blocks - held.f_bfree) * held.f_frsize


def shm_names() -> list[Path]:
    """What has a name in the stage's /dev/shm."""
    return sorted(SHM.iterdir())
