"""A dataset whose parts lie on the machines of a Ray cluster, opened as one."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import ray
import torch

from overspill.cluster.connection import (
    Connection,
    Link,
    connect,
    layout_from,
    require_no_fork,
    start_ray,
)
from overspill.cluster.layout import Layout
from overspill.cluster.local_parts import open_part
from overspill.cluster.machines import end_servers, served_layout
from overspill.cluster.parted_arrays import REMOTE_COST, PartedArray, Reach
from overspill.cluster.parted_edges import PartedEnds, PartedPicks
from overspill.cluster.survey import this_address
from overspill.cluster.warm import warm_parts
from overspill.errors import FormatError, InputError, StaleFileError
from overspill.graph.dataset import Dataset, EdgeType
from overspill.graph.edge_ends import Ends
from overspill.graph.item_reader import ItemReader
from overspill.graph.node_ids import require_within, whole_ids
from overspill.graph.sampling.picks import Picks
from overspill.linux.paths import require_path
from overspill.storage.records import FileRecord

_DEADLINE_S = 120.0


class ClusterDataset(Dataset):
    """A dataset in parts on several machines, as `overspill.cluster.open_dataset` gives it.

    It looks like the whole: ids are those of the whole, `gather`, `sampler` and the loaders of
    `overspill.pyg` work as over a dataset of one machine, and give the same, bit for bit, for the
    same seeds. Places of edges are those of the whole where parts are ranges; where nodes were
    scattered by a hash, edges are numbered part after part.

    Parts of this machine are read in place, without Ray. Others are asked for, one request a
    machine for each hop and for each array, by as many as there are at a time. What cannot be had
    of a dataset that lies elsewhere are its arrays as mapped tensors (`topology`, `features`).

    It pickles in a few hundred bytes, and reconnects where it is first used: in tasks and actors of
    the same cluster, and in processes that were spawned on a machine of it, such as a DataLoader's
    workers. Threads may share one. A forked child cannot use it. Use it as a context manager, or
    close it; servers end with the program anyway.

    Attributes:
        path: The partition's directory.
        manifest: What there is in all parts together.
    """

    is_mapped = False
    survives_fork = False
    remote_cost = REMOTE_COST

    def __init__(self, link: Link, layout: Layout | None = None, *, ends: str = "") -> None:
        # The manifest comes with the layout: it is asked for where it is first looked at.
        self.path = Path(link.path)
        self._tensors, self._arrays, self._raw_ids, self._part = {}, {}, {}, None
        self._link, self._ends = link, ends
        self._reaching = threading.RLock()
        self._held: Reach | None = None
        if layout is not None:
            self._reached(layout)

    @property
    def machines(self) -> tuple[str, ...]:
        """The machines that serve parts: Ray's names of their nodes."""
        return tuple(machine.node_id for machine in self._reach.layout.machines)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Network addresses of `machines`."""
        return tuple(machine.address for machine in self._reach.layout.machines)

    @property
    def num_parts(self) -> int:
        """How many parts there are."""
        return self._reach.layout.num_parts

    @property
    def local_parts(self) -> tuple[int, ...]:
        """Numbers of the parts that this process reads in place."""
        return self._reach.local.parts

    def machines_of_nodes(
        self, ids: torch.Tensor | npt.NDArray[Any] | Sequence[int], type: str | None = None
    ) -> npt.NDArray[np.int64]:
        """Which machine serves each node.

        Args:
            ids: Global ids, in any order.
            type: The node type; may be left out where there is one only.

        Returns:
            int64 (ids,): places in `machines`.

        Raises:
            InputError: No such type, or ids out of range.
        """
        node, layout, wanted = self.node_record(type), self._reach.layout, whole_ids(ids)
        require_within(wanted, node.count, what=f"ids of node type {node.name!r}")
        return layout.homes[layout.parts_of(node.name, wanted)]

    def open_reader(self, record: FileRecord, stride_bytes: int, span_bytes: int) -> ItemReader:
        """A random reader of an array, wherever its parts lie."""
        return PartedArray(self._reach, record.path, (stride_bytes, span_bytes))

    def open_edge_ends(self, edge_type: EdgeType) -> Ends:
        """What tells the ends of a type's edges by their places."""
        return PartedEnds(self._reach, edge_type)

    def open_picks(self, edge_type: EdgeType) -> Picks | None:
        """What chooses edges of a type on the machines that have them."""
        return PartedPicks(self._reach, edge_type)

    def require_files(self, why: str) -> NoReturn:
        """Refuse what reads files of the whole, which lie on several machines (InputError)."""
        raise InputError(
            f"{why}, and the parts of {self.path} lie on several machines",
            path=str(self.path),
            remedy="gather the rows that are wanted, or sample; overspill.open_partition opens the "
            "parts of this machine; hot rows can be chosen by the counts of loader.count_uses()",
        )

    def close(self) -> None:
        """Let go of the dataset: its servers end with the last dataset of theirs. Idempotent.

        In the process that opened it; what it was sent to can then be asked nothing any more.
        """
        with self._reaching:
            held, ends, self._ends = self._held, self._ends, ""
            if held is not None and ends:
                self._arrays.clear()
                end_servers(held.layout, detached=ends == "detached")

    def __enter__(self) -> ClusterDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name == "manifest":
            self.manifest = self._reach.layout.manifest
            return self.manifest
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that this one starts connects to the node that this one is connected to.
        here = self._held is not None and ray.is_initialized()
        link = replace(self._link, node=this_address()) if here else self._link
        return ClusterDataset, (link,)

    def __repr__(self) -> str:
        if self._held is None:
            return f"ClusterDataset({str(self.path)!r}, not connected yet)"
        return (
            f"ClusterDataset({str(self.path)!r}, nodes={self.num_nodes}, edges={self.num_edges}, "
            f"parts={self.num_parts}, machines={len(self.machines)})"
        )

    def _repr_html_(self) -> str:
        return f"<code>{self!r}</code>"

    @property
    def _reach(self) -> Reach:
        require_no_fork()
        held = self._held
        if held is None:
            with self._reaching:
                held = self._held
                if held is None:
                    connect(self._link)
                    held = self._reached(layout_from(self._link))
        return held

    def _reached(self, layout: Layout) -> Reach:
        reach = Reach(layout, Connection(layout, self._link.deadline_s), _here(layout))
        warm_parts(layout)
        self._held = reach
        return reach

    def _mapped(self, record: FileRecord) -> torch.Tensor:
        array = self._reach.layout.arrays[record.path]
        self.require_files(f"{array.name!r} of {array.owner!r} cannot be mapped as a whole")

    def _raw(self, type: str | None) -> Any:
        if self._reach.layout.raw_ids:
            raise InputError(
                f"nodes of {self.path} have raw ids, which are kept with its parts",
                path=str(self.path),
                remedy="translate them where the whole dataset is, or ask the parts one by one",
            )
        return super()._raw(type)


def open_dataset(
    path: str | Path,
    *,
    address: str | None = None,
    deadline_s: float = _DEADLINE_S,
    detached: bool = False,
) -> ClusterDataset:
    """Open a dataset in parts on the machines of a Ray cluster.

    Every machine is asked which parts of it are at the path; each part is served by one of those
    that have it, by an actor that takes no processor. Seconds: a process is started on each
    machine. A second call in the same Ray job finds the servers of the first.

    A machine that fails, or a server, delays requests until it is back: up to `deadline_s`, after
    which an error names the machine and its parts. Where all machines see the files, another one
    takes over.

    Args:
        path: The directory that `overspill.cluster.build` or `partition_dataset` filled: the same
            on every machine, each with its own parts, or on a file system that they share.
        address: The cluster's, where this process has not called `ray.init`; None finds one that
            runs on this machine.
        deadline_s: How long a request may take, with all repetitions. Opening may take 120 s
            whatever it is.
        detached: Leave the servers running when this program ends, for others to find; `close`
            ends them.

    Returns:
        The dataset.

    Raises:
        InputError: No partition there, or different ones on different machines; a deadline or an
            address that is none.
        ClusterError: No cluster, or a part that no machine has.
        FormatError: Parts that are not of one whole.
    """
    place = str(Path(require_path(path)).absolute())
    seconds: Any = deadline_s
    if not isinstance(seconds, Real) or not 0 < float(seconds) < math.inf:
        raise InputError(
            f"deadline_s={deadline_s!r} is no time",
            remedy="give seconds above 0, and an end: a day is 86400",
        )
    if not ray.is_initialized():
        start_ray(address)
    require_no_fork()
    # Processes start meanwhile, which takes longer than most requests may.
    layout = served_layout(place, deadline_s=max(deadline_s, _DEADLINE_S), detached=detached)
    link = Link(
        path=place,
        partition=layout.partition,
        cluster=str(ray.get_runtime_context().gcs_address),
        node=this_address(),
        servers=tuple(machine.server for machine in layout.machines),
        deadline_s=deadline_s,
    )
    return ClusterDataset(link, layout, ends="detached" if detached else "job")


def _here(layout: Layout) -> int | None:
    """The number of this machine, where the parts that it serves can be read in place."""
    # By address: a machine that was restarted has another node's id, and its files still.
    mine = this_address()
    for number, machine in enumerate(layout.machines):
        if machine.address != mine:
            continue
        try:
            for part in machine.parts:
                open_part(layout, part)
        except (FormatError, StaleFileError):
            return None
        return number
    return None
