"""The node types of a build: how many nodes there are, and what raw ids become.

Dense ids are nodes already; others are collected from all edges, sorted out of core and stored, and
translated by rank. Where nodes are renumbered, a second translation follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.array_inputs import store_node_array
from overspill.build.context import BuildContext
from overspill.build.ids.numbers import IdTranslator, store_distinct_ids
from overspill.build.ids.text_ids import TextIdRecords, TextTranslator, store_distinct_strings
from overspill.build.inputs import EdgeInputs, NodeInputs
from overspill.build.readers.edges import RawIds, Strings
from overspill.build.remedies import INPUTS_ALONE, REPORT
from overspill.build.renumber import Renumbering
from overspill.errors import FormatError, InputError
from overspill.storage.arrays import map_array
from overspill.storage.records import FileRecord
from overspill.storage.texts import StoredTexts
from overspill.storage.type_records import NodeTypeRecord

Ids = npt.NDArray[np.int64]


class NodeType:
    """One node type of a build."""

    def __init__(self, context: BuildContext, inputs: NodeInputs) -> None:
        self.inputs, self.name = inputs, inputs.name
        self.count = inputs.count
        self.notes: dict[str, int] = {}
        self.arrays: dict[str, FileRecord] = {}
        self._context = context
        self._records: dict[str, FileRecord] = {}
        self._salt = 0
        self._translator: IdTranslator | TextTranslator | None = None
        self._renumbering: Renumbering | None = None

    @property
    def prefix(self) -> str:
        """Where the type's files go."""
        return f"nodes/{self.name}"

    @property
    def known_count(self) -> int:
        """The number of nodes, once it has been found."""
        if self.count is None:
            raise FormatError(
                f"the number of nodes of type {self.name!r} was never found", remedy=REPORT
            )
        return self.count

    # Ids that are not dense.

    def store_ids(self, edges: tuple[EdgeInputs, ...]) -> None:
        """Collect, sort and store the distinct ids of all edges that touch this type.

        Raises:
            InputError: There are none, or not as many as was told.
        """
        if self.inputs.kind == "dense":
            return
        held = self._context.step(f"ids of {self.name}", lambda: self._collect(edges))
        self._salt = held["salt"]
        self._records = {
            name: FileRecord.from_json(record) for name, record in held["records"].items()
        }
        count = self._records["ids"].shape[0]
        if not count and self.inputs.count is None:
            raise no_nodes(self.name, edges)
        self.inputs.require_count(count, "the distinct ids of the edges")
        self.count = count
        self._translator = self._open_translator()

    def _collect(self, edges: tuple[EdgeInputs, ...]) -> dict[str, Any]:
        touching = [edge for edge in edges if self.name in (edge.spec.type[0], edge.spec.type[2])]
        directory, plan = self._context.directory, self._context.plan
        if self.inputs.kind == "text":
            texts = store_distinct_strings(
                lambda: self._raw_ids(touching), directory, prefix=self.prefix, plan=plan
            )
            held, salt = (
                {"ids": texts.hashes, "offsets": texts.offsets, "data": texts.data},
                texts.salt,
            )
        else:
            path = f"{self.prefix}/ids.safetensors"
            held = {
                "ids": store_distinct_ids(self._raw_ids(touching), directory, path=path, plan=plan)
            }
            salt = 0
        return {"salt": salt, "records": {name: record.to_json() for name, record in held.items()}}

    def _raw_ids(self, edges: list[EdgeInputs]) -> Iterator[Any]:
        progress = self._context.progress
        progress.begin("collect ids", sum(edge.nbytes for edge in edges), "B")
        before = 0
        for edge in edges:
            ends = edge.spec.type[0], edge.spec.type[2]
            for _, chunk, done in edge.chunks(self._context.plan.chunk_edges):
                for end, ids in zip(ends, (chunk.sources, chunk.targets), strict=True):
                    if end == self.name:
                        yield ids
                progress.reach(before + done)
            before += edge.nbytes

    def _open_translator(self) -> IdTranslator | TextTranslator:
        path = self._context.directory.path
        ids = self._records["ids"]
        if self.inputs.kind == "text":
            records = TextIdRecords(
                ids, self._records["offsets"], self._records["data"], self._salt
            )
            return TextTranslator(path, records)
        return IdTranslator(path / ids.path, ids)

    # Dense ids of a graph whose size nobody told.

    def note_largest(self, largest: int) -> None:
        """Take the number of nodes from the largest id, where nothing else tells it."""
        if self.count is None:
            self.count = largest + 1

    # Raw ids to nodes.

    def translate(self, raw: RawIds) -> Ids:
        """Raw ids of the edges to node ids; dense ids come back as they are, unchecked."""
        if self._translator is not None:
            ids = self._translator.translate(raw)  # type: ignore[arg-type]
        elif isinstance(raw, Strings):
            raise self._turned_out_text("ids")
        else:
            ids = raw
        return ids if self._renumbering is None else self._renumbering.translate(ids)

    def find(self, raw: RawIds) -> Ids:
        """The same for ids that need not be known: -1 where no node has such an id."""
        if self._translator is not None:
            ids = self._translator.find(raw)  # type: ignore[arg-type]
        elif isinstance(raw, Strings):
            raise self._turned_out_text("keys")
        else:
            ids = np.where((raw >= 0) & (raw < self.known_count), raw, -1)
        if self._renumbering is None:
            return ids
        known = ids >= 0
        ids[known] = self._renumbering.translate(ids[known])
        return ids

    def _turned_out_text(self, what: str) -> FormatError:
        return FormatError(
            f"{what} of type {self.name!r} turned out to be text", remedy=INPUTS_ALONE
        )

    def raw_id(self, node: int) -> str:
        """The raw id of a node, for messages."""
        place, held, path = node, self._records, self._context.directory.path
        if "original" in held:
            place = int(map_array(path / held["original"].path, held["original"])[1][node])
        if "data" in held:
            texts = StoredTexts(path, {"offsets": held["offsets"], "data": held["data"]})
            return texts.read(*texts.spans(np.array([place]))).tobytes().decode("utf-8", "replace")
        if "ids" in held:
            place = int(map_array(path / held["ids"].path, held["ids"])[1][place])
        return str(place)

    def renumber(self, renumbered: FileRecord, original: FileRecord) -> None:
        """From now on, nodes have other numbers."""
        self._records |= {"renumbered": renumbered, "original": original}
        self._renumbering = Renumbering(self._context.directory.path, renumbered)

    @property
    def translates(self) -> bool:
        """Whether raw ids are anything but node ids."""
        return self._translator is not None or self._renumbering is not None

    @property
    def renumbered(self) -> bool:
        """Whether nodes have other numbers than at first."""
        return self._renumbering is not None

    def renumber_all(self, first: Ids) -> Ids:
        """First numbers to node ids."""
        return first if self._renumbering is None else self._renumbering.translate(first)

    def store_arrays(self) -> None:
        """Store every named array, each as a step."""
        total = sum(array.nbytes for array in self.inputs.arrays)
        if self.inputs.arrays:
            self._context.progress.begin("copy node arrays", total, "B")
        for array in self.inputs.arrays:
            held = self._context.step(
                f"array {array.name} of {self.name}",
                partial(store_node_array, array, self, self._context),
            )
            self.arrays[array.name] = FileRecord.from_json(held["record"])
            self.notes |= held["notes"]

    def record(self) -> NodeTypeRecord:
        """What the manifest says of this type."""
        texts: dict[str, FileRecord] = {
            name: self._records[name] for name in ("offsets", "data") if name in self._records
        }
        return NodeTypeRecord(
            self.name,
            self.known_count,
            self.arrays,
            self._records.get("ids"),
            texts or None,
            self._salt,
            self._records.get("original"),
            self._records.get("renumbered"),
            self.notes,
        )


def no_nodes(name: str, edges: tuple[EdgeInputs, ...]) -> InputError:
    """The error of a type without any id and without a number of nodes."""
    touching = [edge for edge in edges if name in (edge.spec.type[0], edge.spec.type[2])]
    paths = [reader.path for edge in touching for reader in edge.readers]
    return InputError(
        f"there are no edges, and nothing says how many nodes of type {name!r} there are",
        path=paths[0] if paths else None,
        remedy="give num_nodes or node features",
    )
