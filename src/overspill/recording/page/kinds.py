"""The kinds of memory as the page names them, in the order in which they are stacked."""

from __future__ import annotations

from dataclasses import dataclass

from overspill.recording.fields import Rows, column, other
from overspill.recording.ledger import Snapshot


@dataclass(frozen=True)
class Kind:
    """A kind of memory.

    Attributes:
        name: Of its class in the style, and of its peak with "_bytes".
        title: What it is called.
        meaning: What it is, in a sentence.
    """

    name: str
    title: str
    meaning: str

    def values(self, rows: Rows) -> Rows:
        """Its column, of rows or of one row."""
        found: Rows = other(rows) if self.name == "other" else column(rows, self.field)
        return found

    @property
    def field(self) -> str:
        """Its name among peaks and columns."""
        return f"{self.name}_bytes"


KINDS = (
    Kind("anon", "Anonymous", "heap, stacks, copies of private pages. Only swap takes it back."),
    Kind("shmem", "Shared memory", "/dev/shm, tmpfs, tensors that processes share."),
    Kind("other", "Kernel and locked", "page tables, sockets, and file pages locked in memory."),
    Kind("dirty", "Dirty cache", "written to files and not yet on the disk."),
    Kind("writeback", "Writeback", "on its way to the disk."),
    Kind("clean_file", "Clean cache", "pages of files that the kernel drops when it needs room."),
)


def limit_noun(snapshot: Snapshot) -> str:
    """What stands above it: a group's limit, or all the memory there is."""
    return "machine" if snapshot.source.endswith("/meminfo") else "limit"
