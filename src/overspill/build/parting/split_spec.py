"""A split of the input of a build in stages: which edges, and what is staged of them, as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from overspill.build.part_spec import StagedFile
from overspill.build.parting.split_owners import HashOwners, Owners, RangeOwners
from overspill.build.spec import EdgeSpec, NonFinite, edge_from_json


@dataclass(frozen=True, kw_only=True)
class OwnersSpec:
    """Which part has which nodes of one type.

    Attributes:
        count: Number of nodes.
        num_parts: Number of parts.
        bounds: Where each part's range of ids begins, and all end; None: scattered by hash.
    """

    count: int
    num_parts: int
    bounds: tuple[int, ...] | None = None

    def owners(self) -> Owners:
        """The same, to be asked."""
        if self.bounds is None:
            return HashOwners(self.count, self.num_parts)
        return RangeOwners(np.array(self.bounds, np.int64))


@dataclass(frozen=True, kw_only=True)
class Window:
    """A file, or a part of it.

    Attributes:
        path: The file.
        nbytes: Its size when the build was planned.
        modified_ns: When it was last changed then.
        first: The first edge (.npy) or row group (Parquet) that is read.
        last: Where they end; None: the whole file.
        first_row: The id of its first edge; None where edges keep no ids.
    """

    path: str
    nbytes: int
    modified_ns: int
    first: int = 0
    last: int | None = None
    first_row: int | None = None


@dataclass(frozen=True, kw_only=True)
class SplitSpec:
    """What one task stages.

    Attributes:
        number: The split's number.
        plan: Identifier of the build.
        edge: How the edges are read; its paths say nothing.
        windows: What is read, in order.
        sources: Who owns the nodes that edges leave.
        targets: Who owns those that they enter.
        layouts: "csc" and "csr", as wanted.
        edge_ids: Whether edges keep their ids.
        rows: Edges of the type in the whole input; None where edges keep no ids.
        to_undirected: Whether edges run both ways.
        drop_loops: Whether self loops go.
        non_finite: What becomes of numbers in arrays that are not finite.
        arrays: Array -> its .npy file, a row an edge of the whole input, or nothing: columns of the
            edge files, by `edge.arrays`.
    """

    number: int
    plan: str
    edge: EdgeSpec
    windows: tuple[Window, ...]
    sources: OwnersSpec
    targets: OwnersSpec
    layouts: tuple[str, ...]
    edge_ids: bool = False
    rows: int | None = None
    to_undirected: bool = False
    drop_loops: bool = False
    non_finite: NonFinite = "keep"
    arrays: dict[str, Window | None] = field(default_factory=dict)

    @classmethod
    def from_json(cls, held: dict[str, Any]) -> SplitSpec:
        """Read what `dataclasses.asdict` and JSON made of one."""
        return cls(
            **held
            | {
                "edge": edge_from_json(held["edge"]),
                "windows": tuple(Window(**window) for window in held["windows"]),
                "sources": owners_from_json(held["sources"]),
                "targets": owners_from_json(held["targets"]),
                "layouts": tuple(held["layouts"]),
                "arrays": {
                    name: None if window is None else Window(**window)
                    for name, window in held["arrays"].items()
                },
            }
        )


@dataclass(frozen=True, kw_only=True)
class StagedArray:
    """How the rows of an edge array look.

    Attributes:
        dtype: A name of `STORED_DTYPES`.
        row_shape: Shape of one row.
    """

    dtype: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """What one task has staged, as the split's done marker holds it.

    Attributes:
        plan: Identifier of the build.
        rows: Edges that were read.
        wide: Whether records hold 8-byte ids.
        files: Layout -> a file a part, None where it got no edge.
        arrays: Edge array -> how its rows look.
        array_rows: Layout -> rows of every array a part.
    """

    plan: str
    rows: int
    wide: bool
    files: dict[str, tuple[StagedFile | None, ...]]
    arrays: dict[str, StagedArray] = field(default_factory=dict)
    array_rows: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, held: dict[str, Any]) -> SplitReport:
        """Read what `to_json` wrote."""
        return cls(
            plan=held["plan"],
            rows=held["rows"],
            wide=held["wide"],
            files={
                layout: tuple(None if one is None else StagedFile(**one) for one in files)
                for layout, files in held["files"].items()
            },
            arrays={
                name: StagedArray(dtype=one["dtype"], row_shape=tuple(one["row_shape"]))
                for name, one in held["arrays"].items()
            },
            array_rows={layout: tuple(rows) for layout, rows in held["array_rows"].items()},
        )


def edge_file(layout: str, part: int) -> str:
    """The name of what is staged of a layout's edges for a part."""
    return f"{layout}-{part:05d}.edges"


def row_file(layout: str, part: int, name: str) -> str:
    """The name of what is staged of an edge array for a part; of "", of the edges' ids."""
    return f"{layout}-{part:05d}.rows.{name}" if name else f"{layout}-{part:05d}.ids"


def owners_from_json(held: dict[str, Any]) -> OwnersSpec:
    """Read what `dataclasses.asdict` and JSON made of an `OwnersSpec`."""
    bounds = held["bounds"]
    return OwnersSpec(**held | {"bounds": None if bounds is None else tuple(bounds)})
