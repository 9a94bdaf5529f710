"""``overspill demo``: the main job on real input, and on a graph larger than its memory."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from overspill.cli.demo.generate import ROW_BYTES
from overspill.cli.ending import ended_in_order
from overspill.cli.options import size as size_option
from overspill.cli.progress import PhaseBars, format_count
from overspill.errors import DiskRefusedError
from overspill.units import format_bytes

if TYPE_CHECKING:
    from overspill.cli.demo.large import LargeSpec
    from overspill.cli.demo.recorded import PartRecording
    from overspill.linux.peaks import Peaks

_FEWEST_NODES, _MOST_NODES = 10_000, 2**31
_LEAST_LIMIT_BYTES = 512 << 20
# Input and dataset side by side, and the build's spool of edges.
_DISK_PER_FEATURE_BYTE = 2.3


def demo(
    size: Annotated[
        str | None, typer.Option(help="Bytes of features in part 2; 4GiB, quick 2GiB.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="The hard limit of part 2; 1GiB, quick 768MiB.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller graph, a lower limit, fewer batches.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the datasets on the disk.")] = False,
    directory: Annotated[
        Path, typer.Option("--dir", help="Where to work; on a disk, not in memory.")
    ] = Path(),
    workers: Annotated[int, typer.Option(min=0, max=64, help="Loader workers of part 2.")] = 2,
    report: Annotated[
        Path | None,
        typer.Option(help="Write a page of part 2's memory over time, such as report.html."),
    ] = None,
) -> None:
    """Build and train: on Cora, then on a generated graph several times the memory limit."""
    from rich.console import Console

    size_bytes = size_option(size or ("2GiB" if quick else "4GiB"))
    limit_bytes = size_option(memory_limit or ("768MiB" if quick else "1GiB"))
    _require_nodes(size_bytes // ROW_BYTES)
    if limit_bytes < _LEAST_LIMIT_BYTES:
        raise typer.BadParameter(
            f"wants {format_bytes(_LEAST_LIMIT_BYTES)} or more: torch and PyG alone take 400 MiB",
            param_hint="--memory-limit",
        )
    console = Console(highlight=False)
    recording = None if report is None else _recording(report, size_bytes, limit_bytes)
    work = _make_work_directory(directory, size_bytes)
    with ended_in_order():
        try:
            _part_1(work, console)
            _part_2(_large_spec(work, size_bytes, limit_bytes, workers, quick), console, recording)
        finally:
            if keep:
                console.print(f"kept: {work}", soft_wrap=True)
            else:
                shutil.rmtree(work)


def _require_nodes(count: int) -> None:
    if not _FEWEST_NODES <= count <= _MOST_NODES:
        sizes = (format_bytes(nodes * ROW_BYTES) for nodes in (_FEWEST_NODES, _MOST_NODES))
        raise typer.BadParameter(f"wants {' to '.join(sizes)}", param_hint="--size")


def _make_work_directory(parent: Path, size_bytes: int) -> Path:
    from overspill.cli.on_disk import require_disk, unwritable
    from overspill.linux.mounts import free_disk_bytes

    require_disk(parent, verb="demo")
    needed, free = int(size_bytes * _DISK_PER_FEATURE_BYTE), free_disk_bytes(parent)
    if needed > free:
        raise DiskRefusedError(
            "the demo does not fit on this disk",
            path=str(parent.resolve()),
            needed_bytes=needed,
            available_bytes=free,
            remedy="choose another disk with --dir, or a smaller graph with --size or --quick",
        )
    try:
        return Path(tempfile.mkdtemp(prefix="overspill-demo-", dir=parent)).resolve()
    except OSError as error:
        raise unwritable(parent, error, verb="demo") from error


def _part_1(work: Path, console: Any) -> None:
    from overspill.cli.demo.cora import run_cora

    console.print("[bold]Part 1[/]: Cora, from its files to a trained model")
    started = time.monotonic()
    with PhaseBars() as bars:
        result = run_cora(work / "cora", report=bars.update)
    console.print(
        f"{result.nodes:,} papers, {result.edges:,} citations; GraphSAGE trained in "
        f"{time.monotonic() - started:.0f} s: test accuracy {result.accuracy:.3f} "
        f"on {result.test_nodes} papers held out",
        soft_wrap=True,
    )


def _large_spec(
    work: Path, size_bytes: int, limit_bytes: int, workers: int, quick: bool
) -> LargeSpec:
    from overspill.cli.demo.large import LargeSpec

    return LargeSpec(
        directory=str(work),
        num_nodes=size_bytes // ROW_BYTES,
        memory_limit_bytes=limit_bytes,
        train_batches=40 if quick else 160,
        test_batches=10 if quick else 20,
        workers=workers,
    )


def _recording(path: Path, size_bytes: int, limit_bytes: int) -> PartRecording:
    from overspill.cli.demo.recorded import PartRecording

    sizes = f"{format_bytes(size_bytes)} of features within {format_bytes(limit_bytes)}"
    return PartRecording(path, f"overspill demo: {sizes}", limit_bytes)


def _part_2(spec: LargeSpec, console: Any, recording: PartRecording | None) -> None:
    from overspill.cli.demo.confined import make_group, run_confined
    from overspill.cli.demo.large import LargeResult

    group, told = make_group(spec.memory_limit_bytes)
    try:
        console.print(
            f"\n[bold]Part 2[/]: a graph larger than its memory, in {told}", soft_wrap=True
        )
        with PhaseBars() as bars:
            held, peaks = run_confined(spec, group, report=bars.update, recording=recording)
    finally:
        if recording is not None and recording.path.exists():
            console.print(f"report: {recording.path}", soft_wrap=True)
        if group is not None:
            group.close()
    console.print(_table(spec, LargeResult(**held), peaks, limited=group is not None))


def _table(spec: LargeSpec, result: Any, peaks: Peaks, *, limited: bool) -> Any:
    from rich.table import Table

    from overspill.cli.demo.generate import CLASSES

    features, edges = result.nodes * ROW_BYTES, result.edges
    limit = format_bytes(spec.memory_limit_bytes)
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cache = peaks.clean_file_bytes + peaks.dirty_bytes
    for name, text in (
        (
            "data",
            f"{format_count(result.nodes)} nodes, {format_count(edges)} edges, "
            f"{format_bytes(features)} of features",
        ),
        ("memory limit", f"{limit}{' (hard)' if limited else ' (planned with, not enforced)'}"),
        (
            "measured peak",
            f"anonymous {format_bytes(peaks.anon_bytes)}, shmem {format_bytes(peaks.shmem_bytes)} "
            f"(together {format_bytes(peaks.anon_shmem_bytes)}); "
            f"page cache {format_bytes(cache)}, which the kernel takes back",
        ),
        (
            "build",
            f"{format_count(result.edges_per_second)} edges/s; "
            f"{result.build_seconds:.0f} s with the copy of the features and checksums",
        ),
        ("gather", f"{format_count(result.rows_per_second)} rows/s while training"),
        ("accuracy", f"{result.accuracy:.3f} against {1 / CLASSES:.3f} by chance"),
        ("the same in memory", f"at least {format_bytes(_in_memory_bytes(result.nodes, edges))}"),
    ):
        table.add_row(f"[bold]{name}[/]", text)
    return table


def _in_memory_bytes(nodes: int, edges: int) -> int:
    """Features, labels, an int64 edge index and the int64 CSC made from it, and no working memory.

    The usual conversions need more: torch-sparse's peaks at 7 times one column of the edge index.
    """
    return nodes * (ROW_BYTES + 8) + 2 * 8 * edges + 8 * (nodes + 1) + 8 * edges
