"""Numbers that headers do not tell, and the splits of the input by which they are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from overspill.build.parting.split_owners import equal_ranges
from overspill.build.parting.split_spec import OwnersSpec, SplitSpec
from overspill.build.progress import Progress
from overspill.build.spec import BuildSpec, EdgeName, EdgeSpec
from overspill.cluster.building import input_files
from overspill.cluster.building.balance import Balance, range_shift
from overspill.cluster.building.headers import Headers
from overspill.cluster.building.job import PlannedSplit
from overspill.cluster.building.request import Request
from overspill.cluster.building.seeing import Lookout
from overspill.cluster.building.splitting import Cut, cut_input, split_bytes
from overspill.cluster.building.tasks import Task, run_tasks
from overspill.errors import InputError


class Counting:
    """Numbers that headers do not tell, and the splits by which they are found."""

    def __init__(
        self,
        request: Request,
        spec: BuildSpec,
        headers: Headers,
        lookout: Lookout,
        progress: Progress,
    ) -> None:
        self._request, self._spec, self._headers = request, spec, headers
        self._addresses, self._progress = lookout.addresses, progress
        self._cpus = [machine.cpus for machine in lookout.machines]
        self._counts = dict(headers.counts)
        self._cuts = {edge.type: self._cut(edge) for edge in spec.edges}
        # Of each type, edges of each piece, by cut and place.
        self._rows = {
            name: [[piece.rows for piece in cut.pieces] for cut in cuts]
            for name, cuts in self._cuts.items()
        }

    def nodes(self) -> dict[str, OwnersSpec]:
        """Which part has which nodes.

        Raises:
            InputError: There are no edges, and nothing says how many nodes of a type there are; or
                an edge array has not a row an edge.
        """
        if self._needs_reading():
            self._read_all()
        self._require_rows()
        parts = self._request.num_parts
        if self._request.method == "hash":
            return {n: OwnersSpec(count=c, num_parts=parts) for n, c in self._sorted_counts()}
        found = {}
        for name, count in self._sorted_counts():
            bounds = tuple(int(bound) for bound in equal_ranges(count, parts).bounds)
            if self._request.method == "degree-balanced":
                bounds = self._balanced(name, count)
            found[name] = OwnersSpec(count=count, num_parts=parts, bounds=bounds)
        return found

    def splits(self, nodes: dict[str, OwnersSpec], plan: str) -> tuple[PlannedSplit, ...]:
        """The splits, numbered, of the plan with this identifier."""
        found: list[PlannedSplit] = []
        for edge in self._spec.edges:
            for place, cut in enumerate(self._cuts[edge.type]):
                ends = nodes[edge.type[0]], nodes[edge.type[2]]
                spec = replace(self._split(edge, place, len(found), ends), plan=plan)
                found.append(PlannedSplit(spec=spec, machines=cut.machines, nbytes=cut.nbytes))
        return tuple(found)

    # Splits.

    def _cut(self, edge: EdgeSpec) -> list[Cut]:
        files = self._headers.edges[edge.type]
        arrays = self._headers.edge_arrays.get(edge.type, {}).values()
        if arrays:
            # Whoever reads the edges reads their rows as well.
            files = [
                replace(
                    file,
                    machines=tuple(
                        one
                        for one in file.machines
                        if all(one in place.machines for place in arrays)
                    ),
                )
                for file in files
            ]
            for file in files:
                if not file.machines:
                    raise InputError(
                        f"no machine has both {file.window.path} and all its edge arrays",
                        path=file.window.path,
                        remedy="put edges and their arrays where one machine sees them all",
                    )
        total = sum(file.window.nbytes for edges in self._headers.edges.values() for file in edges)
        return cut_input(
            files,
            split_bytes(total, sum(self._cpus)),
            self._cpus,
            in_order=not self._spec.sort_within_row or bool(edge.arrays),
        )

    def _split(
        self, edge: EdgeSpec, place: int, number: int, ends: tuple[OwnersSpec, OwnersSpec]
    ) -> SplitSpec:
        ids = self._keeps_ids(edge)
        firsts = self._first_rows(edge.type) if ids else {}
        windows = [
            replace(piece.window, first_row=firsts.get((place, n)))
            for n, piece in enumerate(self._cuts[edge.type][place].pieces)
        ]
        arrays = self._headers.edge_arrays.get(edge.type, {})
        rows = self._rows[edge.type]
        return SplitSpec(
            number=number,
            plan="",
            edge=replace(edge, paths=()),
            windows=tuple(windows),
            sources=ends[0],
            targets=ends[1],
            layouts=self._spec.layouts,
            edge_ids=ids,
            rows=sum(count or 0 for held in rows for count in held) if ids else None,
            to_undirected=self._spec.to_undirected,
            drop_loops=self._spec.self_loops == "drop",
            non_finite=self._spec.non_finite,
            arrays={name: arrays[name].window if name in arrays else None for name in edge.arrays},
        )

    def _keeps_ids(self, edge: EdgeSpec) -> bool:
        return self._spec.edge_ids or bool(edge.arrays)

    def _first_rows(self, name: EdgeName) -> dict[tuple[int, int], int]:
        """The id of each piece's first edge, by cut and place: as the files stand in the input."""
        pieces = [
            (piece.file, piece.window.first, place, n)
            for place, cut in enumerate(self._cuts[name])
            for n, piece in enumerate(cut.pieces)
        ]
        found, first = {}, 0
        for _, _, place, n in sorted(pieces):
            found[place, n] = first
            first += self._rows[name][place][n] or 0
        return found

    # What only reading tells.

    def _needs_reading(self) -> bool:
        if any(name not in self._counts for name in self._spec.nodes):
            return True
        return any(
            self._keeps_ids(edge) and None in held
            for edge in self._spec.edges
            for held in self._rows[edge.type]
        )

    def _read_all(self) -> None:
        """Count the edges of every piece, and find the largest ids."""
        largest = dict.fromkeys(self._spec.nodes, -1)
        for edge, place, (counts, *ends) in self._on_splits("count nodes", input_files.count_split):
            self._rows[edge.type][place] = list(counts)
            for end, last in zip((edge.type[0], edge.type[2]), ends, strict=True):
                largest[end] = max(largest[end], last)
        for name, last in largest.items():
            if name not in self._counts:
                if last < 0:
                    raise InputError(
                        f"there are no edges, and nothing says how many nodes of type {name!r} "
                        "there are",
                        remedy="give num_nodes or node features",
                    )
                self._counts[name] = last + 1

    def _balanced(self, name: str, count: int) -> tuple[int, ...]:
        """Cuts of equal shares of nodes and edges: counted by ranges, then where cuts lie."""
        parts, shift = self._request.num_parts, range_shift(count)
        entered = [edge for edge in self._spec.edges if self._row_type(edge) == name]
        coarse = np.zeros((max(0, count - 1) >> shift) + 1, np.int64)
        for _, _, held in self._on_splits(
            "count degrees", input_files.count_entering, shift, (), edges=entered
        ):
            coarse += held[0]
        balance = Balance(count, parts, coarse, shift=shift)
        ranges = balance.ranges() if count else []
        wanted = tuple(balance.nodes_of(number) for number in ranges)
        fine = {
            n: np.zeros(last - first, np.int64)
            for n, (first, last) in zip(ranges, wanted, strict=True)
        }
        if wanted:
            for _, _, held in self._on_splits(
                "count degrees", input_files.count_entering, shift, wanted, edges=entered
            ):
                for number, counts in zip(ranges, held, strict=True):
                    fine[number] += counts
        return balance.bounds(fine)

    def _row_type(self, edge: EdgeSpec) -> str:
        return edge.type[2] if "csc" in self._spec.layouts else edge.type[0]

    def _on_splits(
        self,
        phase: str,
        act: Callable[..., Any],
        *arguments: Any,
        edges: Sequence[EdgeSpec] | None = None,
    ) -> list[tuple[EdgeSpec, int, Any]]:
        """Run a reading of all splits of some types: type, number within it, and result."""
        held = [
            (edge, place, cut)
            for edge in (self._spec.edges if edges is None else edges)
            for place, cut in enumerate(self._cuts[edge.type])
        ]
        tasks = []
        for edge, place, cut in held:
            ends = self._whole(edge.type[0]), self._whole(edge.type[2])
            places = tuple(self._addresses[machine] for machine in cut.machines)
            tasks.append(Task(act, (self._split(edge, place, 0, ends), *arguments), places))
        self._progress.begin(phase, sum(cut.nbytes for _, _, cut in held), "B")
        cpus = dict(zip(self._addresses, self._cpus, strict=True))
        results = run_tasks(tasks, most=cpus.__getitem__, on_progress=self._reach)
        return [(edge, place, one) for (edge, place, _), one in zip(held, results, strict=True)]

    def _reach(self, done: float) -> None:
        self._progress.reach(int(done))

    def _whole(self, name: str) -> OwnersSpec:
        return OwnersSpec(count=self._counts.get(name, 0), num_parts=1, bounds=(0, 0))

    def _require_rows(self) -> None:
        for name, arrays in self._headers.edge_arrays.items():
            held = [count for rows in self._rows[name] for count in rows]
            for array, place in arrays.items():
                path, edges = place.window.path, sum(count or 0 for count in held)
                if self._headers.rows[path] != edges:
                    raise InputError(
                        f"{path} has {self._headers.rows[path]} rows for {edges} edges "
                        "(one an edge is needed)",
                        path=path,
                        column=array,
                        value=str(self._headers.rows[path]),
                        remedy="give one row for each edge",
                    )

    def _sorted_counts(self) -> list[tuple[str, int]]:
        return [(name, self._counts[name]) for name in self._spec.nodes]
