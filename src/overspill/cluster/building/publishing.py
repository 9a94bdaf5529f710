"""The end of a build in stages: the partition's document and books, then nothing staged is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from overspill import __version__
from overspill.build.parting.books import book_path, write_book
from overspill.build.parting.split_spec import OwnersSpec, edge_file, row_file
from overspill.cluster.building.job import PLAN_NAME, JobPlan, part_name
from overspill.cluster.building.parts import FinishedPart, array_file, part_lock
from overspill.cluster.building.staging import DONE_NAME, LOCK_NAME
from overspill.cluster.building.tasks import Send
from overspill.errors import DiskRefusedError
from overspill.storage.arrays import partial_path
from overspill.storage.partition_manifest import (
    PARTITION_NAME,
    BookEntry,
    PartEntry,
    PartitionManifest,
    publish_partition,
)
from overspill.storage.records import FileRecord


def publish(plan: JobPlan, parts: list[FinishedPart], *, send: Send) -> None:
    """Write the books and `partition.json` on this machine; durable when this returns.

    Raises:
        DiskRefusedError: The disk refused.
    """
    send(0)
    out = Path(plan.out)
    if (out / PARTITION_NAME).exists():
        return
    books = {
        name: BookEntry(owners.count, _book(out, name, owners))
        for name, owners in plan.nodes.items()
    }
    manifest = PartitionManifest(
        plan.identifier,
        plan.identifier,
        plan.method,
        [PartEntry(part_name(part.index), part.identifier) for part in parts],
        books,
        datetime.now(UTC).isoformat(timespec="seconds"),
        __version__,
    )
    publish_partition(out, manifest)


def tidy(plan: JobPlan, *, send: Send) -> None:
    """Remove what was staged and the plan: what the plan names, and nothing else.

    The plan goes last, so that whatever stops this is gone on with.
    """
    send(0)
    try:
        for path in _staged(plan):
            path.unlink(missing_ok=True)
        for split in plan.splits:
            with suppress(FileNotFoundError):
                plan.split_directory(split.spec.number).rmdir()
        (plan.work / PLAN_NAME).unlink(missing_ok=True)
        for directory in (plan.work, Path(plan.out)):
            if directory.is_dir() and not any(directory.iterdir()):
                directory.rmdir()
    except OSError as error:
        raise DiskRefusedError(
            f"what was staged in {plan.work} cannot be removed: {error.strerror}",
            path=str(plan.work),
            errno=error.errno,
            remedy="the partition is complete: remove the directory by hand",
        ) from error


def _staged(plan: JobPlan) -> Iterator[Path]:
    """Every file that stages make, whether it is on this machine or not."""
    for split in plan.splits:
        place = plan.split_directory(split.spec.number)
        there = {entry.name for entry in place.iterdir()} if place.is_dir() else set()
        for layout in split.spec.layouts:
            for part in range(plan.num_parts):
                wanted = [edge_file(layout, part)]
                if split.spec.arrays:
                    wanted += [row_file(layout, part, name) for name in ("", *split.spec.arrays)]
                for name in wanted:
                    yield from (place / one for one in (name, name + ".partial") if one in there)
        yield place / DONE_NAME
        yield place / LOCK_NAME
    for part in range(plan.num_parts):
        yield plan.work / part_lock(part)
        for name, arrays in plan.node_arrays.items():
            for array in arrays:
                path = plan.work / array_file(part, name, array)
                yield from (path, partial_path(path))


def _book(out: Path, name: str, owners: OwnersSpec) -> FileRecord:
    relative = book_path(name)
    path = out / relative
    path.parent.mkdir(exist_ok=True)
    for old in (path, partial_path(path)):
        old.unlink(missing_ok=True)  # of an attempt that was killed
    return write_book(path, owners.owners(), num_parts=owners.num_parts, record_path=relative)
