"""How the input is cut, parts are balanced and requests are understood, without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overspill.build import Columns
from overspill.build.moving.row_ends import RowEnds
from overspill.build.parting.split_owners import balanced_ranges
from overspill.build.parting.split_spec import Window
from overspill.cluster.building.balance import Balance, range_shift
from overspill.cluster.building.request import MOST_FILES, Given, request_build
from overspill.cluster.building.splitting import InputFile, cut_input, split_bytes
from overspill.errors import InputError
from small_graphs import write_array

MIB = 1 << 20
WHOLE, ROWS, GROUPS = "whole", "rows", "groups"
FILES = st.lists(
    st.tuples(
        st.sampled_from([WHOLE, ROWS, GROUPS]),
        st.integers(0, 900),  # rows, one a MiB
        st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=3, unique=True),
    ),
    max_size=12,
)


def input_file(number: int, kind: str, rows: int, machines: list[int]) -> InputFile:
    window = Window(path=f"/data/{number}", nbytes=rows * MIB, modified_ns=0)
    units = tuple([7] * (rows // 7) + [rows % 7]) if kind == GROUPS else None
    return InputFile(window, tuple(sorted(machines)), rows, units, kind == ROWS)


@pytest.mark.parametrize("in_order", [True, False])
@given(files=FILES, most=st.integers(30, 400))
def test_every_edge_is_in_one_split_on_a_machine_that_has_it(
    files: list[Any], most: int, in_order: bool
) -> None:
    inputs = [input_file(number, *file) for number, file in enumerate(files)]
    cuts = cut_input(inputs, most * MIB, [1, 2, 1], in_order=in_order)
    seen: dict[int, list[tuple[int, int]]] = {}
    for cut in cuts:
        for piece in cut.pieces:
            file = inputs[piece.file]
            assert set(cut.machines) == set(file.machines)
            first, last = piece.window.first, piece.window.last
            if last is None:
                first, last = 0, file.rows or 0
            elif file.units is not None:
                first, last = sum(file.units[:first]), sum(file.units[:last])
            assert piece.rows == last - first
            seen.setdefault(piece.file, []).append((first, last))
        alone = len(cut.pieces) == 1
        assert alone or cut.nbytes <= most * MIB * 9 // 8
    for number, file in enumerate(inputs):
        ranges = sorted(seen[number])
        assert [first for first, _ in ranges] == [0, *(last for _, last in ranges[:-1])]
        assert ranges[-1][1] == file.rows
    if in_order:
        order = [(piece.file, piece.window.first) for cut in cuts for piece in cut.pieces]
        assert order == sorted(order)


def test_splits_are_as_many_as_processors_or_a_multiple() -> None:
    def number(total: int, cpus: int) -> int:
        file = InputFile(Window(path="/a", nbytes=total, modified_ns=0), (0,), total, None, True)
        return len(cut_input([file], split_bytes(total, cpus), [1], in_order=False))

    assert number(10 * MIB, 8) == 1
    assert number(1600 * MIB, 2) == 2
    assert number(5 << 30, 2) == 6
    assert number(64 << 40, 4) == 500


def test_files_that_all_machines_see_are_shared_out() -> None:
    files = [input_file(0, ROWS, 800, [0, 1, 2])]
    cuts = cut_input(files, 100 * MIB, [1, 2, 1], in_order=False)
    first = [cut.machines[0] for cut in cuts]
    assert [first.count(machine) for machine in range(3)] == [2, 4, 2]


@given(
    degrees=st.lists(st.integers(0, 30) | st.just(2000), min_size=1, max_size=60),
    parts=st.integers(1, 12),
    shift=st.integers(0, 4),
)
def test_cuts_are_those_of_the_row_ends(
    tmp_path_factory: pytest.TempPathFactory, degrees: list[int], parts: int, shift: int
) -> None:
    place = tmp_path_factory.getbasetemp() / "ends"
    place.unlink(missing_ok=True)
    ends = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    expected = balanced_ranges(
        len(degrees), parts, [RowEnds(place, write_array(place, ends), int(ends[-1]))]
    )
    held = np.array(degrees)
    coarse = np.add.reduceat(held, np.arange(0, len(held), 1 << shift))
    balance = Balance(len(degrees), parts, coarse, shift=shift)
    fine = {number: held[slice(*balance.nodes_of(number))] for number in balance.ranges()}
    assert list(balance.bounds(fine)) == expected.bounds.tolist()
    place.unlink()


def test_ranges_are_few_whatever_the_nodes() -> None:
    for count in (1, 65_536, 65_537, 10**9):
        assert ((count - 1) >> range_shift(count)) < 65_536


def test_a_path_may_name_its_machine() -> None:
    assert Given.of("10.0.0.7:/data/a.npy", "edges") == Given("/data/a.npy", "10.0.0.7")
    assert Given.of("[fd00::7]:/data/a", "edges") == Given("/data/a", "fd00::7")
    assert Given.of("a.npy", "edges") == Given(str(Path.cwd() / "a.npy"), None)


def asked(**arguments: Any) -> Any:
    given = {"edges": "/d/e.npy", "num_parts": 2, "method": "range"}
    given |= {"node_features": None, "edge_features": None}
    return request_build("/d/out", **{**given, **arguments})


def test_a_request_keeps_what_machines_look_for() -> None:
    request = asked(
        edges={("a", "to", "b"): ["/d/1.npy", "h:/d/2.npy"]},
        node_features={"a": {"x": "/d/x.npy"}},
        edge_features={("a", "to", "b"): {"w": Columns("w"), "t": "/d/t.npy"}},
    )
    assert [str(one) for one in request.patterns()] == [
        *("/d/1.npy", "h:/d/2.npy"),
        *("/d/t.npy", "/d/x.npy"),
    ]
    (edge,) = request.spec.edges
    assert edge.paths == () and edge.arrays["w"].columns == ("w",) and not edge.arrays["w"].paths
    assert request.spec.streams == ()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"edges": []}, "names no files"),
        ({"num_parts": 0}, "not a number of parts"),
        ({"num_parts": MOST_FILES + 1}, "open at a time"),
        ({"method": "metis"}, "no way to partition"),
        ({"resume": True}, "'resume' is no option"),
        ({"method": "degree-balanced", "duplicates": "drop"}, "only once parts are built"),
        ({"ids": "text"}, "ids='text'"),
        ({"layout": "coo"}, "layout"),
    ],
)
def test_what_no_build_in_stages_takes_is_refused_at_once(
    arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        asked(**arguments)
