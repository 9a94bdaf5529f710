"""What memory there is and who holds it: the binding control group and this process."""

from __future__ import annotations

from dataclasses import dataclass

from overspill.linux.cgroups import available_memory_bytes, binding_memory_group, memory_groups
from overspill.linux.processes import process_memory
from overspill.tensors.memory_html import memory_html
from overspill.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """Memory at one moment; ``str()`` is one line.

    The group's figures are those of the control group with the least headroom, or of this process's
    own where none limits; None where no memory controller can be read.

    Attributes:
        group: The group's directory.
        limit_bytes: Its hard limit.
        usage_bytes: All that is charged to it, page cache included.
        headroom_bytes: What it still allows: limit, less usage, plus clean page cache.
        anon_bytes: Its anonymous memory.
        shmem_bytes: Its shared memory.
        clean_file_bytes: Its page cache that can be dropped at once.
        dirty_bytes: Its page cache that must be written first.
        writeback_bytes: Its page cache being written.
        available_bytes: What can still be allocated: the headroom, or what the system has.
        rss_anon_bytes: This process's resident anonymous memory.
        rss_file_bytes: Its resident pages of mapped files.
        rss_shmem_bytes: Its resident shared memory.
    """

    group: str | None
    limit_bytes: int | None
    usage_bytes: int | None
    headroom_bytes: int | None
    anon_bytes: int | None
    shmem_bytes: int | None
    clean_file_bytes: int | None
    dirty_bytes: int | None
    writeback_bytes: int | None
    available_bytes: int
    rss_anon_bytes: int
    rss_file_bytes: int
    rss_shmem_bytes: int

    @property
    def rss_bytes(self) -> int:
        """This process's resident memory, all of it."""
        return self.rss_anon_bytes + self.rss_file_bytes + self.rss_shmem_bytes

    def _repr_html_(self) -> str:
        return memory_html(
            self.usage_bytes if self.limit_bytes is None else self.limit_bytes,
            parts=(
                ("anonymous", self.anon_bytes, "cannot be dropped"),
                ("shared memory", self.shmem_bytes, "cannot be dropped"),
                ("dirty or being written", self._unwritten_bytes, "dropped once written"),
                ("clean page cache", self.clean_file_bytes, "dropped when room is wanted"),
            ),
            totals=(
                ("limit", self.limit_bytes),
                ("used of it", self.usage_bytes),
                ("can still be had", self.available_bytes),
                ("this process: anonymous", self.rss_anon_bytes),
                ("this process: mapped files", self.rss_file_bytes),
                ("this process: shared memory", self.rss_shmem_bytes),
            ),
        )

    @property
    def _unwritten_bytes(self) -> int | None:
        if self.dirty_bytes is None or self.writeback_bytes is None:
            return None
        return self.dirty_bytes + self.writeback_bytes

    def __str__(self) -> str:
        return (
            f"memory: {format_bytes(self.available_bytes)} available; limit "
            f"{_told(self.limit_bytes)}, usage {_told(self.usage_bytes)}, headroom "
            f"{_told(self.headroom_bytes)}; anon {_told(self.anon_bytes)}, shmem "
            f"{_told(self.shmem_bytes)}, clean file {_told(self.clean_file_bytes)}, dirty "
            f"{_told(self.dirty_bytes)}, writeback {_told(self.writeback_bytes)}; rss anon "
            f"{format_bytes(self.rss_anon_bytes)}, file {format_bytes(self.rss_file_bytes)}, shmem "
            f"{format_bytes(self.rss_shmem_bytes)}"
        )


def memory_report() -> MemoryReport:
    """Read the binding control group's memory and this process's own.

    A few small reads of /proc and the control groups, and about 1 ms a GiB that this process has
    resident. The figures are read one after the other, not at one instant. Thread-safe.

    Returns:
        The report.

    Raises:
        UnavailableError: /proc cannot be read.
    """
    use = binding_memory_group() or next(iter(memory_groups()), None)
    own = process_memory()
    return MemoryReport(
        group=use.path if use else None,
        limit_bytes=use.limit_bytes if use else None,
        usage_bytes=use.usage_bytes if use else None,
        headroom_bytes=use.headroom_bytes if use else None,
        anon_bytes=use.anon_bytes if use else None,
        shmem_bytes=use.shmem_bytes if use else None,
        clean_file_bytes=use.clean_file_bytes if use else None,
        dirty_bytes=use.dirty_bytes if use else None,
        writeback_bytes=use.writeback_bytes if use else None,
        available_bytes=available_memory_bytes(),
        rss_anon_bytes=own.anon_bytes,
        rss_file_bytes=own.file_bytes,
        rss_shmem_bytes=own.shmem_bytes,
    )


def _told(nbytes: int | None) -> str:
    return "none" if nbytes is None else format_bytes(nbytes)
