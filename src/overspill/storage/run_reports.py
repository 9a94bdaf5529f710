"""What a look into a spill directory tells: runs, the processes that hold them, and their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from overspill.storage.lease_records import LeaseRecord
from overspill.storage.spill_records import TensorRecord

State = Literal["alive", "dead", "unknown"]


@dataclass(frozen=True)
class FileReport:
    """A spill file.

    Attributes:
        name: Its name in the run's directory.
        nbytes: Its size, all of it reserved on the disk.
        tensor: What it holds, or None where that is not recorded.
        resident_bytes: Bytes of it in memory, or None where the kernel does not tell.
        dirty_bytes: Bytes not yet written back, or None where the kernel does not tell.
        mapped_by: Processes of the run that map it.
    """

    name: str
    nbytes: int
    tensor: TensorRecord | None = None
    resident_bytes: int | None = None
    dirty_bytes: int | None = None
    mapped_by: tuple[int, ...] = ()


@dataclass(frozen=True)
class ProcessReport:
    """A process that holds a run's lease.

    Attributes:
        pid: Its number, as this process sees it.
        command: Its command line, or None where it is not told.
        shows_mappings: Whether it lets this process see what it maps.
    """

    pid: int
    command: str | None
    shows_mappings: bool


@dataclass(frozen=True)
class RunReport:
    """A run, alive or dead.

    Attributes:
        directory: Its directory.
        state: "alive", "dead", or "unknown" where nothing tells.
        reason: How that is known, or why not, where it needs saying; else "".
        began: What its lease tells of its beginning; None where it cannot be read.
        age_s: Seconds since then by this machine's clock, or None where the lease does not tell.
        is_of_this_machine: Whether it began on this machine since its last start; None where the
            lease does not tell.
        processes: Those that hold it and can be seen from here.
        files: Its spill files, the largest first.
        is_removable: Whether this user may remove it once it is dead.
    """

    directory: Path
    state: State
    reason: str = ""
    began: LeaseRecord | None = None
    age_s: float | None = None
    is_of_this_machine: bool | None = None
    processes: tuple[ProcessReport, ...] = ()
    files: tuple[FileReport, ...] = ()
    is_removable: bool = True

    @property
    def nbytes(self) -> int:
        """The bytes of its files."""
        return sum(file.nbytes for file in self.files)

    @property
    def resident_bytes(self) -> int:
        """Those of them known to be in memory."""
        return sum(file.resident_bytes or 0 for file in self.files)

    @property
    def dirty_bytes(self) -> int:
        """Those of them known not to be written back."""
        return sum(file.dirty_bytes or 0 for file in self.files)


@dataclass(frozen=True)
class SpillDirReport:
    """What lies in a spill directory.

    Attributes:
        directory: The directory, absolute.
        runs: Its runs, living ones first, then by age.
        unnamed_files: Files there that have no name (batches on their way, discarded tensors), and
            that a process of these runs still maps.
        unnamed_bytes: What is mapped of them.
        file_system: The type of the file system.
        free_bytes: Free on its disk.
        total_bytes: The size of the disk.
    """

    directory: Path
    runs: tuple[RunReport, ...]
    unnamed_files: int
    unnamed_bytes: int
    file_system: str
    free_bytes: int
    total_bytes: int
