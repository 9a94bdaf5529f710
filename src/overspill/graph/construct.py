"""Building a dataset from Python: the build's own process, a progress bar, the opened result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

from tqdm import tqdm

from overspill.build.child import run_build
from overspill.build.describe import BuildOptions, describe_build
from overspill.graph.dataset import Dataset, open_dataset


def build_dataset(
    out: str | Path,
    *,
    edges: str | Path | Iterable[str | Path],
    node_features: Mapping[str, str | Path] | None = None,
    memory_limit: str | int | None = None,
    progress: bool = False,
    **options: Unpack[BuildOptions],
) -> Dataset:
    """Build a graph dataset from edge files, in a fixed amount of memory.

    Reads the edges once (twice where ids are remapped), writes and reads back 8 bytes an edge of
    scratch space in `out`, and writes the rows: 4 bytes an edge, 8 a node. Beyond 2**31 - 1 nodes
    it is 16 and 8 bytes an edge. Edges of targets so dense that one of 128 to 512 ranges of them
    exceeds a bucket go through scratch space once more. Remapping takes, before that, up to 16
    bytes an edge for sorted runs, as much again each time that runs are merged in groups (above
    130 million edges; at the smallest memory above half a million), 8 bytes a distinct id for their
    merge, and 8 that stay. The memory is that of a process of its own, at most `memory_limit` of
    anonymous memory, whatever the number of edges and nodes; the very first build compiles its
    kernels first, which takes seconds and about 110 MiB. The same input gives the same array files,
    byte for byte. Several builds may run at once, from threads or processes, into different
    directories.

    Args:
        out: The dataset's directory: absent, empty, or an unfinished build, which starts over.
        edges: A file, a glob pattern, or several: .csv with a header, .txt as SNAP publishes it,
            .npy of shape (2, E) or (E, 2).
        node_features: Name -> .npy file whose first axis is the nodes; copied as it is.
        memory_limit: The most anonymous memory of the build's process, its imports included, such
            as "1GiB"; None takes the setting's, and in any case what the system and every control
            group leave.
        progress: Show a bar for each phase on stderr.
        **options: `num_nodes`; `ids`: "dense" (0 to the number of nodes - 1, checked), "remap"
            (any int64, made dense in their order; the raw ids are kept) or "auto" (remap for SNAP
            text without num_nodes and features, else dense); `layout`: "csc", the in-neighbours
            of each node; `columns`: names of the source and target columns of CSV files;
            `edge_axis`: 1 for (2, E) and 0 for (E, 2) where the shape does not tell.

    Returns:
        The opened dataset.

    Raises:
        InputError: An input is wrong: an id out of range, negative, null or no integer; a missing
            column; features with the wrong number of rows; no edges and no number of nodes. Names
            file, row, column and value. Rows count data rows from 1 (CSV), lines from 1 (SNAP) or
            positions from 0 (.npy).
        OutputDirError: `out` holds something else, or a finished dataset, or lies in memory.
        NoRoomError: The smallest plan needs more memory than allowed; names how much.
        DiskRefusedError: The disk is full or refused.
        BuildFailedError: The build's process was killed; what it left cannot be opened as data, and
            the next build starts over.
        SettingsError: The memory limit's setting cannot be understood.
        UnavailableError: This system does not tell what memory or disk there is.
    """
    spec = describe_build(
        out, edges=edges, node_features=node_features, memory_limit=memory_limit, **options
    )
    with _Bars(shown=progress) as bars:
        run_build(spec, on_event=bars.follow)
    return open_dataset(spec.out)


class _Bars:
    """A progress bar for the phase under way."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._phase: str | None = None
        self._bar: Any = None

    def follow(self, event: dict[str, Any]) -> None:
        """Show an event of a build."""
        if not self._shown or event["event"] != "progress":
            return
        if event["phase"] != self._phase:
            self._close()
            self._phase = event["phase"]
            self._bar = tqdm(
                total=event["total"],
                desc=event["phase"],
                unit=event["unit"],
                unit_scale=True,
                unit_divisor=1024 if event["unit"] == "B" else 1000,
            )
        self._bar.update(event["done"] - self._bar.n)

    def __enter__(self) -> _Bars:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
