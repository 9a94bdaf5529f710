"""How much memory a build takes: buffers chosen so that the projection stays within the limit.

The sizes depend on the memory allowed and never on the number of edges or nodes. One factor scales
them all; the largest that fits is taken, up to a size beyond which more memory buys no speed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from overspill.errors import NoRoomError
from overspill.linux.cgroups import usable_cpus

_MIB = 1 << 20
# Python objects, thread stacks, the allocator's slack, and Arrow's blocks for CSV input.
_OVERHEAD_BYTES = 40 * _MIB
# The part of it that readers of tables may take.
_READING_BYTES = 16 * _MIB
# Page cache under write-back (two windows a writer, three writers), page tables, the parent's own
# growth: charged to the group although not to this process.
RESERVE_BYTES = 56 * _MIB
# So that not only an id but also the number of nodes fits 32 bits.
_NARROW_NODES = 2**31 - 1
_SCALES = (16, 8, 4, 2, 1)
# Of all buckets at scale 1, however many threads share them.
_ROWS_BYTES = 10 * _MIB
_BUCKETS_BESIDE = 3
_MOST_THREADS = 16
_PAGE = 4096


@dataclass(frozen=True)
class BuildPlan:
    """Sizes of the buffers of one build.

    Attributes:
        chunk_edges: Edges that a reader hands over at a time; three chunks are alive.
        ranges: Destination ranges that a partition step tells apart.
        block_bytes: Size of a staged block of one range.
        spare_blocks: Blocks beside the one that each range has open.
        bucket_bytes: Memory in which one bucket of edges is read and sorted into rows.
        run_ids: Ids that are sorted at a time where ids are remapped, or a hub's.
        copy_bytes: Size of a slice in which node arrays are copied.
        threads: How many threads sort, each a bucket of its own.
        narrow_nodes: With more nodes than this, an id takes 8 bytes on disk, else 4.
        projected_bytes: Peak anonymous memory of the process with these buffers.
        allowed_bytes: What it may hold.
    """

    chunk_edges: int
    ranges: int
    block_bytes: int
    spare_blocks: int
    bucket_bytes: int
    run_ids: int
    copy_bytes: int
    threads: int = 1
    narrow_nodes: int = _NARROW_NODES
    projected_bytes: int = 0
    allowed_bytes: int = 0

    @property
    def buckets(self) -> int:
        """Buckets in memory: one a thread, one that is read, one or two that are written."""
        return self.threads + _BUCKETS_BESIDE

    def buffer_bytes(self) -> int:
        """Bytes of all buffers of the greediest phase."""
        # Sources and targets, raw (two chunks more are being read) and as int64.
        chunks = (5 + 3) * 16 * self.chunk_edges
        pool = (2 * self.ranges + self.spare_blocks) * self.block_bytes
        translation = 2 * 24 * self.chunk_edges  # both columns, their order and their ranks
        partition = chunks + translation + pool
        buckets = self.buckets * self.bucket_bytes
        # Of what is partitioned again, two at a time (`second_level`): the pool, three pieces that
        # are read ahead, and their columns.
        second = 2 * pool // 8 + 4 * 24 * (self.chunk_edges // 4)
        # Sorted runs: the buffer, its distinct copy, and one merge window with its sorted copy.
        runs = 5 * 8 * self.run_ids
        return max(partition, buckets + max(second, runs), chunks + runs, 3 * self.copy_bytes)


def plan_build(
    *,
    base_bytes: int,
    available_bytes: int,
    limit_bytes: int | None,
    threads: int | None = None,
    reading_bytes: int = 0,
) -> BuildPlan:
    """Choose the largest buffers that fit.

    Args:
        base_bytes: Anonymous memory that the process holds already: imports, compiled kernels.
        available_bytes: What it can still allocate, by the system and every cgroup.
        limit_bytes: The most that it may hold by the caller's word; None without one.
        threads: How many threads sort; by default one for each processor that may be used. They
            share the same memory.
        reading_bytes: What the readers of tables hold; a part of it is always counted.

    Returns:
        The plan; ``projected_bytes`` is at most ``allowed_bytes``.

    Raises:
        NoRoomError: Not even the smallest buffers fit; names the smallest limit that works.
    """
    allowed = base_bytes + max(0, available_bytes - RESERVE_BYTES)
    if limit_bytes is not None:
        allowed = min(allowed, limit_bytes)
    for scale in _SCALES:
        sizes = _scaled(scale, usable_cpus() if threads is None else threads)
        overhead = _OVERHEAD_BYTES + max(0, reading_bytes - _READING_BYTES)
        projected = base_bytes + overhead + BuildPlan(**sizes).buffer_bytes()
        if projected <= allowed:
            return BuildPlan(**sizes, projected_bytes=projected, allowed_bytes=allowed)
    by_caller = limit_bytes is not None and allowed == limit_bytes
    raise NoRoomError(
        "the build does not fit the memory it may use",
        needed_bytes=projected if by_caller else projected + RESERVE_BYTES,
        available_bytes=allowed if by_caller else base_bytes + available_bytes,
        remedy=(
            f'set memory_limit to "{-(-projected // _MIB)}MiB" or more'
            if by_caller
            else f"give the process {-(-(projected + RESERVE_BYTES) // _MIB)} MiB or more"
        ),
    )


def second_level(plan: BuildPlan) -> BuildPlan:
    """The sizes with which what does not fit a bucket is partitioned, beside the buckets."""
    return replace(
        plan,
        chunk_edges=max(1, plan.chunk_edges // 4),
        ranges=max(2, plan.ranges // 8),
        spare_blocks=max(1, plan.spare_blocks // 8),
    )


def _scaled(scale: int, threads: int) -> dict[str, int]:
    threads = max(1, min(threads, _MOST_THREADS))
    return {
        "chunk_edges": min(scale, 8) << 15,
        "ranges": 512 if scale >= 4 else 256 if scale == 2 else 128,
        "block_bytes": (64 if scale >= 4 else 32) << 10,
        "spare_blocks": 24 * scale,
        "threads": threads,
        "bucket_bytes": scale * _ROWS_BYTES // (threads + _BUCKETS_BESIDE) // _PAGE * _PAGE,
        "run_ids": scale << 16,
        "copy_bytes": max(1, scale // 2) << 20,
    }
