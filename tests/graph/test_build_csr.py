from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import overspill as ov
from overspill.errors import InputError, SettingsError, UnsupportedTensorError
from overspill.graph import CSR, csr, csr_buckets, csr_fill, csr_inputs, csr_plan
from overspill.graph.csr_homes import Plan, plan_homes
from overspill.graph.csr_plan import Shape, Sizes
from overspill.storage.workspace import leave_runs
from overspill.tensors.layouts import bytes_of
from spilling import no_spill_dir, spill_dir, spill_files

__all__ = ["no_spill_dir", "spill_dir"]


def require_naive(
    found: CSR, row: Any, col: Any, num_rows: int, *, sort: bool = True, weights: Any = None
) -> None:
    """Sort all edges by row, and column if asked for; count."""
    rows, columns = np.asarray(row, np.int64), np.asarray(col, np.int64)
    order = np.lexsort((columns, rows)) if sort else np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=num_rows)
    assert found.indptr.tolist() == [0, *np.cumsum(counts).tolist()]
    assert found.indptr.dtype == torch.int64
    assert np.array_equal(found.indices.numpy(), columns[order])
    if found.edge_ids is not None:
        assert found.edge_ids.dtype == torch.int64
        assert np.array_equal(found.edge_ids.numpy(), order)
    assert (found.weights is None) == (weights is None)
    if found.weights is not None:
        assert (found.weights.dtype, found.weights.shape) == (weights.dtype, weights.shape)
        size = math.prod(weights.shape[1:]) * weights.element_size()
        wanted = bytes_of(weights.contiguous()).view(len(order), size)[torch.from_numpy(order)]
        assert torch.equal(bytes_of(found.weights).view(len(order), size), wanted)


def make_small(
    monkeypatch: pytest.MonkeyPatch, bucket_edges: int, chunk_edges: int | None = None
) -> None:
    """Have every mechanism at work on a few edges; with chunks, everything goes to disk."""
    for module in (csr_fill, csr_inputs):
        monkeypatch.setattr(module, "SLICE_EDGES", 16)
    monkeypatch.setattr(csr_buckets, "_CELL_BITS", 2)
    sizes = Sizes(bucket_edges=bucket_edges, chunk_edges=chunk_edges, scratch_bytes=0)

    def planned(shape: Shape, nbytes: tuple[int, ...], limit: int | None) -> Plan:
        plan = replace(plan_homes(shape, nbytes, limit), sizes=sizes)
        if chunk_edges is None:
            return plan
        return replace(
            plan, rooms=replace(plan.rooms, memory_bytes=0), memory_bytes=0, in_memory=False
        )

    monkeypatch.setattr(csr, "plan_homes", planned)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return functools.partial(make_small, monkeypatch)


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Edges over few or many rows and columns, some with a hub of most edges."""
    num_rows = draw(st.sampled_from([1, 2, 7, 100, 3000, 70_000]))
    num_cols = draw(st.sampled_from([1, 2, 100, 2**31, 2**31 + 1, 2**33, 2**62]))
    count = draw(st.integers(0, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, columns = rng.integers(0, num_rows, count), rng.integers(0, num_cols, count)
    hub = draw(st.sampled_from([0.0, 0.5, 1.0]))
    rows[rng.random(count) < hub] = draw(st.integers(0, num_rows - 1))
    columns[rng.random(count) < hub] = draw(st.integers(0, num_cols - 1))
    return rows, columns, num_rows, num_cols


WEIGHTS: dict[str, Callable[[int], torch.Tensor]] = {
    "float32": lambda count: torch.rand(count),
    "bool": lambda count: torch.rand(count) > 0.5,
    "bfloat16, strided": lambda count: torch.rand(count, 6).to(torch.bfloat16)[:, ::2],
    "fp8": lambda count: torch.rand(count, 2).to(torch.float8_e4m3fn),
    "complex128": lambda count: torch.rand(count, dtype=torch.complex128),
    "conj": lambda count: torch.rand(count, dtype=torch.complex64).conj(),
    "expanded": lambda count: torch.rand(1, 3).expand(count, 3),
    "matrix": lambda count: torch.rand(count, 2, 3, dtype=torch.float64),
    "unaligned": lambda count: (
        torch.randint(0, 99, (count * 8 + 1,)).to(torch.uint8)[1:].view(count, 8)
    ),
    "grad": lambda count: torch.rand(count, requires_grad=True),
    "no bytes": lambda count: torch.rand(count, 0),
}


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_any_options_give_what_the_plainest_way_gives(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows, columns, num_rows, num_cols = data.draw(edge_lists())
    kind = data.draw(st.sampled_from([torch.int64, torch.int32]))
    row = torch.from_numpy(rows).to(kind)
    name = data.draw(st.sampled_from([None, *WEIGHTS]))
    weights = None if name is None else WEIGHTS[name](len(rows))
    sort, edge_ids = data.draw(st.booleans()), data.draw(st.booleans())
    limit = data.draw(st.sampled_from([None, num_cols]))
    chunk = data.draw(st.sampled_from([None, 1, 50, 300]))
    place = tmp_path_factory.mktemp("spill")
    with pytest.MonkeyPatch.context() as patch, ov.settings(spill_dir=place, min_bytes=1):
        make_small(patch, data.draw(st.integers(1, 60)), chunk)
        found = ov.build_csr(
            row,
            torch.from_numpy(columns),
            num_rows,
            num_cols=limit,
            edge_ids=edge_ids,
            weights=weights,
            sort_within_row=sort,
        )
        plain = None if weights is None else weights.detach().resolve_conj()
        require_naive(found, rows, columns, num_rows, sort=sort, weights=plain)
        assert (found.edge_ids is None) == (not edge_ids)
        fits = (limit or int(columns.max(initial=-1)) + 1) <= 2**31
        assert found.indices.dtype == (torch.int32 if fits else torch.int64)
        outputs = [one for one in found if one is not None and one.nbytes]
        assert all(ov.is_disk_backed(one) == (chunk is not None) for one in outputs)
        assert len(spill_files(place)) == (0 if chunk is None else len(outputs))
        del found, outputs
        leave_runs()


def random_edges(count: int = 5000, nodes: int = 300) -> tuple[torch.Tensor, torch.Tensor]:
    edges = torch.randint(nodes, (2, count), generator=torch.Generator().manual_seed(3))
    return edges[0], edges[1]


def test_it_unpacks_and_its_repr_reads_no_data() -> None:
    row, col = random_edges()
    indptr, indices, *extras = ov.build_csr(row, col, 300)
    assert extras == [None, None]
    assert (len(indptr), len(indices)) == (301, 5000)
    found = ov.build_csr(row, col, 300, edge_ids=True)
    told = "CSR(num_rows=300, num_edges=5000, indices=torch.int32, edge_ids=torch.int64)"
    assert repr(found) == told


def test_it_is_what_a_stable_sort_of_torch_gives() -> None:
    row, col = random_edges()
    found = ov.build_csr(row, col, 300, edge_ids=True, sort_within_row=False)
    by_row = torch.sort(row, stable=True)
    assert torch.equal(found.indices, col[by_row.indices].int())
    assert torch.equal(found.edge_ids, by_row.indices)
    assert torch.equal(found.indptr, torch._convert_indices_from_coo_to_csr(by_row.values, 300))


class TestShapes:
    def test_no_rows_and_no_edges(self) -> None:
        none = torch.empty(0, dtype=torch.int64)
        for num_rows in (0, 3):
            found = ov.build_csr(none, none, num_rows, edge_ids=True, weights=torch.empty(0, 2))
            assert found.indptr.tolist() == [0] * (num_rows + 1)
            assert found.indices.shape == (0,) == found.edge_ids.shape
            assert found.indices.dtype == torch.int32 and found.weights.shape == (0, 2)

    def test_isolated_rows_at_the_end(self) -> None:
        found = ov.build_csr(torch.tensor([7, 0]), torch.tensor([1, 2]), 10)
        assert found.indptr.tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2]

    def test_duplicates_and_self_loops_stay(self) -> None:
        row = torch.tensor([1, 1, 0, 1])
        found = ov.build_csr(row, torch.tensor([1, 1, 0, 1]), 2, edge_ids=True)
        assert found.indices.tolist() == [0, 1, 1, 1] and found.edge_ids.tolist() == [2, 0, 1, 3]

    def test_a_star_with_a_million_edges_into_one_row(self) -> None:
        col = torch.randint(1000, (1_000_000,), generator=torch.Generator().manual_seed(1))
        row = torch.full((1_000_000,), 5)
        row[::1000] = torch.arange(1000)
        found = ov.build_csr(row, col, 1000, edge_ids=True, weights=col.double())
        require_naive(found, row, col, 1000, weights=col.double())
        require_naive(ov.build_csr(row, col, 1000), row, col, 1000)

    def test_edge_indices_of_any_stride(self) -> None:
        row, col = random_edges()
        pairs = torch.stack([row, col], dim=1)
        for one, other in (pairs.t(), pairs[::2].t(), torch.stack([row, col]).int()):
            require_naive(ov.build_csr(one, other, 300), one, other, 300)
        zero = torch.tensor(4).expand(50)
        require_naive(ov.build_csr(zero, col[:50], 5), zero, col[:50], 5)

    def test_disk_backed_inputs(self, spill_dir: Path) -> None:
        pairs = ov.spill_tensor_to_disk(torch.stack(random_edges()), required=True)
        require_naive(ov.build_csr(pairs[0], pairs[1], 300), *pairs, 300)

    def test_buckets_of_more_rows_than_sixteen_bits_tell(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csr_plan, "_SHORT_ROWS", 4)
        row, col = random_edges(50_000, 70_000)
        found = ov.build_csr(row, col, 70_000, edge_ids=True)
        require_naive(found, row, col, 70_000)
        assert Shape(edges=1, num_rows=4001, num_cols=1, column_bytes=4).row_bytes == 4


class TestNarrowing:
    @pytest.mark.parametrize(
        ("largest", "num_cols", "dtype"),
        [
            (2**31 - 1, None, torch.int32),
            (2**31, None, torch.int64),
            (5, 2**31, torch.int32),
            (5, 2**31 + 1, torch.int64),
            (2**63 - 2, None, torch.int64),
        ],
    )
    def test_indices_are_int32_only_when_every_id_fits(
        self, largest: int, num_cols: int | None, dtype: torch.dtype
    ) -> None:
        col = torch.tensor([3, largest, 4])
        found = ov.build_csr(torch.tensor([0, 0, 1]), col, 2, num_cols=num_cols)
        assert found.indices.dtype == dtype and found.indices.tolist() == [3, largest, 4]
        assert found.indptr.dtype == torch.int64


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "value", "num_cols"),
        [
            ("row", -1, None),
            ("row", 300, None),
            ("row", 2**40, None),
            ("col", -1, None),
            ("col", 300, 300),
            ("col", 2**63 - 1, None),
        ],
    )
    def test_an_id_out_of_range_is_named_with_its_position(
        self, name: str, value: int, num_cols: int | None, spill_dir: Path
    ) -> None:
        row, col = random_edges(300_000)
        given = {"row": row, "col": col}
        for position in (200_123, 299_999):
            given[name][position] = value
        with pytest.raises(InputError) as caught:
            ov.build_csr(row, col, 300, num_cols=num_cols, memory_limit="16MiB")
        assert (caught.value.row, caught.value.column) == (200_123, name)
        assert caught.value.value == str(value) and f"{name}[200123] is {value}" in str(
            caught.value
        )
        assert caught.value.remedy and spill_files(spill_dir) == []

    def test_edges_without_rows(self) -> None:
        with pytest.raises(InputError, match="none at all"):
            ov.build_csr(torch.tensor([0]), torch.tensor([0]), 0)

    @pytest.mark.parametrize(
        "dtype", [torch.float32, torch.bool, torch.uint64, torch.uint8, torch.int16]
    )
    @pytest.mark.parametrize("name", ["row", "col"])
    def test_ids_of_another_dtype(self, name: str, dtype: torch.dtype) -> None:
        given = {"row": torch.tensor([0, 1]), "col": torch.tensor([0, 1])}
        given[name] = given[name].to(dtype)
        with pytest.raises(InputError, match=f"{name} is of {dtype}") as caught:
            ov.build_csr(given["row"], given["col"], 2)
        assert "int64" in str(caught.value.remedy)

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"row": torch.zeros(2, 1, dtype=torch.int64)}, "2 dimensions"),
            ({"row": torch.tensor(1)}, "0 dimensions"),
            ({"row": torch.tensor([1])}, "row has 1 entries and col 2"),
            ({"row": torch.eye(2).long().to_sparse()}, "no strided CPU tensor"),
            ({"row": torch.zeros(2, dtype=torch.int64, device="meta")}, "no strided CPU tensor"),
            ({"row": [0, 1]}, "no strided CPU tensor"),
            ({"num_rows": -1}, "num_rows cannot be negative"),
            ({"num_rows": 2.5}, "num_rows is no integer"),
            ({"num_cols": -1}, "num_cols cannot be negative"),
            ({"weights": torch.ones(3)}, "must be 2 edges"),
            ({"weights": torch.tensor(3)}, "must be 2 edges"),
            ({"weights": torch.eye(2).to_sparse()}, "no strided CPU tensor"),
            ({"weights": [1, 2]}, "no tensor"),
        ],
    )
    def test_what_is_no_edge_list(self, change: dict[str, Any], told: str) -> None:
        ids = torch.tensor([0, 1])
        given: dict[str, Any] = {"row": ids, "col": ids, "num_rows": 2, **change}
        with pytest.raises(InputError, match=told):
            ov.build_csr(given.pop("row"), given.pop("col"), given.pop("num_rows"), **given)

    def test_quantized_weights_and_a_limit_that_is_no_size(self) -> None:
        ids = torch.tensor([0, 1])
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
        with pytest.raises(UnsupportedTensorError, match="quantized"):
            ov.build_csr(ids, ids, 2, weights=quantized)
        with pytest.raises(SettingsError, match="much"):
            ov.build_csr(ids, ids, 2, memory_limit="much")


class TestProgress:
    def test_a_callable_gets_each_phase_to_its_end(self, small_steps: Callable[..., None]) -> None:
        small_steps(60)
        row, col = random_edges()
        events: list[dict[str, Any]] = []
        ov.build_csr(row, col, 300, progress=events.append)
        ended = [one["phase"] for one in events if one["done"] == one["total"]]
        assert list(dict.fromkeys(ended)) == ["count", "partition", "order"]
        assert {(one["total"], one["unit"]) for one in events} == {(5000, "edges")}

    def test_true_shows_bars_and_false_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        row, col = random_edges()
        ov.build_csr(row, col, 300)
        assert capsys.readouterr().err == ""
        ov.build_csr(row, col, 300, progress=True)
        assert "partition: 100%" in capsys.readouterr().err

    @pytest.mark.parametrize("chunk", [None, 700])
    def test_an_interrupt_leaves_nothing(
        self, chunk: int | None, small_steps: Callable[..., None], spill_dir: Path
    ) -> None:
        small_steps(60, chunk)
        row, col = random_edges()

        def interrupt(event: dict[str, Any]) -> None:
            if event["phase"] == "order":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ov.build_csr(row, col, 300, progress=interrupt)
        assert spill_files(spill_dir) == []


def test_threads_build_over_the_same_inputs() -> None:
    row, col = random_edges(100_000)
    found: list[CSR] = []
    threads = [
        threading.Thread(target=lambda: found.append(ov.build_csr(row, col, 300))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for one in found:
        require_naive(one, row, col, 300)
