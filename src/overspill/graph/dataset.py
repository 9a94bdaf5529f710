"""An opened dataset: its topology and features as mapped tensors, and reads of random rows.

Opening reads the manifest and the headers, never a payload page. Whole tensors are mapped on first
use and stay under the kernel's normal read-ahead; random reads go through mappings of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt
import torch

from overspill.graph.dataset_records import DatasetRecords
from overspill.graph.dataset_shown import dataset_html, dataset_line
from overspill.graph.edge_ends import EdgeEnds, Ends
from overspill.graph.item_reader import ItemReader
from overspill.graph.node_ids import require_within, whole_ids
from overspill.graph.paged import PagedArray
from overspill.graph.parts import Part, PartIds, require_whole
from overspill.graph.raw_ids import RawIds
from overspill.graph.rows import gather_rows, open_rows
from overspill.graph.rows import row_bytes as row_bytes
from overspill.graph.sampling.picks import Picks
from overspill.graph.sampling.sampler import NeighborSampler, SampleLimit, open_sampler
from overspill.graph.sampling.spec import EdgeType as EdgeType
from overspill.graph.sampling.spec import FanOuts, SamplingSpec, spec_for
from overspill.graph.text_ids import TextIds
from overspill.graph.topology import Topology as Topology
from overspill.linux.identity import host_identity
from overspill.linux.paths import require_path
from overspill.placement.loader import RemoteCost
from overspill.storage.arrays import map_array
from overspill.storage.manifest import Manifest, read_manifest
from overspill.storage.records import FileRecord
from overspill.storage.sent_paths import require_sent, sent_from
from overspill.tensors.dtypes import torch_dtype
from overspill.tensors.mapping import wrap_mapping


class Dataset(DatasetRecords):
    """A graph on disk, as `open_dataset` gives it.

    It pickles by path and identifier, a few hundred bytes whatever its size; the receiver gets a
    `StaleFileError` where another dataset stands at the path, which names both machines where it
    is on another one. Threads may share one, and a forked child may go on using it. Mappings are
    made on first use and live as long as the dataset or a tensor of it.

    Attributes:
        path: The dataset's directory, absolute.
        manifest: What the dataset says about itself.
        is_mapped: Whether its arrays can be mapped as a whole.
        survives_fork: Whether a forked child may go on using it.
        remote_cost: What reading from other machines takes.
    """

    is_mapped: ClassVar[bool] = True
    survives_fork: ClassVar[bool] = True
    remote_cost: ClassVar[RemoteCost] = RemoteCost()

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._tensors: dict[str, torch.Tensor] = {}
        self._arrays: dict[tuple[str, int, int], ItemReader] = {}
        self._raw_ids: dict[str, RawIds | PartIds] = {}
        self._part: Part | None = None

    @property
    def part(self) -> Part | None:
        """Which part of a partitioned dataset this is, and its ids there; None: it is whole."""
        record = self.manifest.partition
        if self._part is None and record is not None:
            self._part = Part(self.path, record, self.manifest, self._mapped)
        return self._part

    def topology(self, edge_type: EdgeType | None = None, *, layout: str = "csc") -> Topology:
        """Map the edges of a type; nothing is read.

        Args:
            edge_type: (source, relation, target); may be left out where there is one only.
            layout: "csc": in-neighbours by destination; "csr": out-neighbours by source. Those
                that the build was asked for are there.

        Returns:
            Disk-backed tensors, mapped privately: a write stays in this process.

        Raises:
            InputError: No such edge type or layout; the message names those there are.
            StaleFileError: A file is gone or was replaced.
        """
        parts = self._layout(edge_type, layout)
        return Topology(**{part: self._mapped(record) for part, record in parts.items()})

    def features(self, name: str, type: str | None = None) -> torch.Tensor:
        """Map a node array; nothing is read.

        Args:
            name: One of `feature_names`.
            type: The node type; may be left out where there is one only.

        Returns:
            A disk-backed tensor (nodes, ...), mapped privately. To read rows at random use
            `gather`: plain indexing drags in the read-ahead of the disk for every row.

        Raises:
            InputError: No such array or type; the message names those there are.
            StaleFileError: The file is gone or was replaced.
        """
        return self._mapped(self._feature(name, type))

    def edge_features(
        self, name: str, edge_type: EdgeType | None = None, *, layout: str = "csc"
    ) -> torch.Tensor:
        """Map an edge array; nothing is read.

        Args:
            name: One of `edge_feature_names`.
            edge_type: (source, relation, target); may be left out where there is one only.
            layout: In whose order of the edges: row i belongs to ``topology(...).indices[i]``.

        Returns:
            A disk-backed tensor (edges, ...), mapped privately; `gather` reads rows at random.

        Raises:
            InputError: No such array, edge type or layout; the message names those there are.
            StaleFileError: The file is gone or was replaced.
        """
        return self._mapped(self._edge_feature(name, edge_type, layout))

    def gather(
        self,
        name: str,
        ids: torch.Tensor | npt.NDArray[Any] | Sequence[int],
        type: str | None = None,
        *,
        edge_type: EdgeType | None = None,
        layout: str = "csc",
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Read rows of a node or edge array, asking for absent pages before touching them.

        At most 24 MiB of pages are asked for ahead of the copy, so that it works in a small memory
        group. Anonymous memory: the result, and 8 bytes a row where its pages are cached; else 32
        to 40 bytes a row of 2**20, or 16 and 8 MiB where that is more. What is cached is copied
        by as many threads as torch uses.

        Args:
            name: One of `feature_names`, or of `edge_feature_names`.
            ids: Node ids, or places of edges, in any order; repeats are fine.
            type: The node type; may be left out where there is one only.
            edge_type: The edge type, to read rows of an edge array.
            layout: In whose order edges are counted.
            out: Contiguous CPU tensor of the array's dtype and shape (ids, ...), filled and
                returned; None allocates one.

        Returns:
            The rows, in the order of `ids`.

        Raises:
            InputError: Ids out of range (names the first and how many), no such array, or an
                `out` that does not fit.
            StaleFileError: The file was cut, replaced or removed since it was opened.
            MappingError: The disk refused to read.
        """
        wanted = whole_ids(ids)
        if edge_type is None:
            record = self._feature(name, type)
            what = f"ids of node type {self.node_name(type)!r}"
        else:
            record = self._edge_feature(name, edge_type, layout)
            what = f"places of edges of type {edge_type}"
        counted = "nodes" if edge_type is None else "edges"
        require_within(wanted, record.shape[0], what=what, counted=counted)
        return gather_rows(self._rows(record), record, wanted, out=out)

    def node_ids(self, type: str | None = None) -> torch.Tensor | TextIds:
        """The raw id of each node: as the edges named it.

        Args:
            type: The node type; may be left out where there is one only.

        Returns:
            int64 (nodes,): mapped where the build gave nodes new ids, 0, 1, ... in memory where it
            did not, 8 bytes a node; of nodes renumbered by degree it is put together anew at each
            call, placed as `allocate_preshared` does. For ids that are text, a `TextIds`: a
            sequence of strings that reads what is asked for.

        Raises:
            InputError: No such node type.
            StaleFileError: A file is gone or was replaced.
            NoRoomError: Renumbered nodes, and no home for their ids.
        """
        return self._raw(type).listed()

    def lookup(
        self,
        raw_ids: torch.Tensor | npt.NDArray[Any] | Sequence[int] | Sequence[str],
        type: str | None = None,
    ) -> torch.Tensor:
        """Translate raw ids, as the edges named them, to node ids.

        A binary search for all at once over the file: of a thousand million ids, a few are found
        with about 21 pages read. 64 bytes of memory an id; 150 and its text where ids are text.

        Args:
            raw_ids: Whole numbers; or strings, as a list or an array, where ids are text: "007"
                and "7" are two nodes.
            type: The node type; may be left out where there is one only.

        Returns:
            int64 (raw_ids,).

        Raises:
            InputError: An id that no node has (names the first and how many), or text where ids
                are integers, or the other way round.
            StaleFileError: A file was cut, replaced or removed since it was opened.
            MappingError: The disk refused to read.
        """
        return torch.from_numpy(self._raw(type).lookup(raw_ids))

    def sampler(
        self,
        what: SamplingSpec | FanOuts,
        edge_type: EdgeType | None = None,
        *,
        replace: bool = False,
        limit: SampleLimit | None = None,
    ) -> NeighborSampler:
        """A sampler over in-edges, with buffers of its own; see `NeighborSampler`.

        Args:
            what: How to sample; or fan-outs alone, a list for all edge types or one for each.
            edge_type: With a list, the only edge type to follow.
            replace: With fan-outs alone, draw with replacement.
            limit: The largest neighbourhood that memory was planned for.

        Raises:
            InputError: What is to be sampled is not there, or is no whole dataset.
            StaleFileError: A file is gone or was replaced.
        """
        require_whole(self.part, self.path)
        spec = spec_for(self, what, edge_type, replace=replace)
        return open_sampler(self, spec, self._paged, self.open_picks, limit)

    def open_reader(self, record: FileRecord, stride_bytes: int, span_bytes: int) -> ItemReader:
        """A random reader of an array, with mappings of its own; see `PagedArray`."""
        path = self.path / record.path
        return PagedArray(path, record, stride_bytes=stride_bytes, span_bytes=span_bytes)

    def open_edge_ends(self, edge_type: EdgeType) -> Ends:
        """What tells the ends of a type's edges by their places."""
        return EdgeEnds(self.edge_record(edge_type), self.open_reader)

    def open_picks(self, edge_type: EdgeType) -> Picks | None:
        """Who chooses edges of a type where they lie; None: they are read here."""

    def require_files(self, why: str) -> None:
        """Refuse what reads the dataset's own files where they do not all lie here (InputError)."""

    def row_reader(self, name: str, type: str | None = None) -> ItemReader:
        """The random reader of a node array, its rows as items."""
        return self._rows(self._feature(name, type))

    def __repr__(self) -> str:
        return dataset_line(self.path, self.manifest)

    def _repr_html_(self) -> str:
        return dataset_html(self.path, self.manifest)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (str(self.path), self.manifest.identifier, host_identity())

    def _raw(self, type: str | None) -> RawIds | PartIds:
        node = self.node_record(type)
        held = self._raw_ids.get(node.name)
        if held is None:
            of_part = self.part and self.part.raw_ids(node.name)
            held = of_part or RawIds(self.path, node, self._mapped)
            self._raw_ids[node.name] = held
        return held

    def _rows(self, record: FileRecord) -> ItemReader:
        return open_rows(self._paged, record)

    def _mapped(self, record: FileRecord) -> torch.Tensor:
        held = self._tensors.get(record.path)
        if held is None:
            mapping, payload = map_array(self.path / record.path, record)
            held = wrap_mapping(
                mapping,
                dtype=torch_dtype(record.dtype),
                shape=record.shape,
                payload_offset=mapping.nbytes - payload.nbytes,
            )
            self._tensors[record.path] = held
        return held

    def _paged(self, record: FileRecord, stride_bytes: int, span_bytes: int) -> ItemReader:
        key = (record.path, stride_bytes, span_bytes)
        held = self._arrays.get(key)
        if held is None:
            held = self._arrays[key] = self.open_reader(record, stride_bytes, span_bytes)
        return held


def open_dataset(path: str | Path) -> Dataset:
    """Open a dataset: milliseconds, whatever its size; no payload page is touched.

    Args:
        path: The directory that `build_dataset` filled.

    Returns:
        The dataset.

    Raises:
        FormatError: Not a dataset (or an unfinished build), damaged, or of an unknown version.
        StaleFileError: A file of it is gone or has another size or header.
        InputError: The path is none, or holds a NUL byte.
    """
    absolute = Path(require_path(path)).absolute()
    return Dataset(absolute, read_manifest(absolute))


def _reopen(path: str, identifier: str, host: str) -> Dataset:
    with sent_from(host, path, "dataset"):
        dataset = open_dataset(path)
        require_sent("dataset", path, found=dataset.manifest.identifier, sent=identifier)
    return dataset
