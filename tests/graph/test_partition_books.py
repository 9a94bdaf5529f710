from __future__ import annotations

import copy
import io
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from joblib.externals.loky.backend.reduction import dumps as loky_dumps

import overspill as ov
from overspill.errors import InputError, StaleFileError, UnsupportedTensorError
from overspill.graph.partition_books import PartitionBook, narrowest_dtype
from spilling import no_spill_dir, spill_dir

__all__ = ["no_spill_dir", "spill_dir"]
INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
]
LAZY = torch.nn.UninitializedParameter(requires_grad=False, dtype=torch.int64)
NOT_DENSE = [
    LAZY,
    torch.zeros(1, dtype=torch.int64, device="meta"),
    torch.ones(1, dtype=torch.int64).to_sparse(),
    torch.eye(2, dtype=torch.int64).to_sparse_csr(),
    torch.nested.nested_tensor([torch.tensor([0]), torch.tensor([0, 0])]),
]


def spilled_book(count: int) -> ov.TensorPartitionBook:
    table = ov.TensorPartitionBook(torch.arange(count).repeat(1 + 3000 // count)).partitions
    return ov.TensorPartitionBook(ov.spill_tensor_to_disk(table, required=True), count)


def naive(bounds: list[int], one: int) -> int:
    return next(number for number, end in enumerate(bounds) if one < end)


class TestRanges:
    @pytest.mark.parametrize(
        "bounds",
        [[5], [3, 6, 10], [0, 4], [0, 0, 0, 2], [4, 4, 4, 9, 9], [1, 2, 3], [7, 7]],
        ids=str,
    )
    def test_every_id_is_where_its_range_is(self, bounds: list[int]) -> None:
        book = ov.RangePartitionBook(bounds)
        ids = torch.arange(bounds[-1])
        assert book[ids].tolist() == [naive(bounds, one) for one in ids.tolist()]
        assert (book.num_partitions, book.num_ids) == (len(bounds), bounds[-1])
        for number in range(len(bounds)):
            first, last = book.partition_range(number)
            assert torch.equal(ids[book[ids] == number], ids[first:last])

    def test_three_nodes_over_eight_partitions(self) -> None:
        book = ov.RangePartitionBook([1, 2, 3, 3, 3, 3, 3, 3])
        assert book[torch.tensor([0, 1, 2])].tolist() == [0, 1, 2]
        assert book.partition_range(7) == (3, 3)

    @pytest.mark.parametrize("dtype", INTEGERS, ids=str)
    def test_ids_of_any_integer_dtype_and_shape(self, dtype: torch.dtype) -> None:
        book = ov.RangePartitionBook(torch.tensor([3, 6], dtype=torch.int32))
        found = book[torch.tensor([[0, 3], [5, 2]]).to(dtype)]
        assert found.dtype == torch.int64 and found.tolist() == [[0, 1], [1, 0]]
        assert book[torch.empty(0, 4, dtype=dtype)].shape == (0, 4)
        assert book[torch.tensor(4).to(dtype)].tolist() == 1

    @pytest.mark.parametrize("wrong", [-1, 10, 2**62])
    def test_an_id_that_is_not_there(self, wrong: int) -> None:
        book = ov.RangePartitionBook([3, 10, 10])
        with pytest.raises(InputError, match="0 to 10, exclusive") as caught:
            book[torch.tensor([0, wrong, 5])]
        assert caught.value.value == str(wrong)

    @pytest.mark.parametrize(
        "bounds",
        [
            *([], [[1, 2]], [[1], [1, 2]], [-1, 2], [3, 2], [False, True], ()),
            *(5, 1.5, 1j, 2**70, None, "ab", object(), {}),
            *([1.9], [1.0, 2.0], [1j], [2**70], [2**63], [-(2**70)], [None], ["1"]),
            *(np.array([1.0]), np.array([[1]]), np.array([2**63], dtype=np.uint64)),
            *(torch.tensor([1.0]), torch.tensor([1j]), torch.tensor(1), torch.ones(1, 1).long()),
            *(torch.empty(0, dtype=torch.int64), torch.tensor([1], dtype=torch.uint64)),
            *(torch.tensor([1], device="meta"), torch.ones(2).long().to_sparse(), LAZY),
        ],
        ids=type,
    )
    @pytest.mark.filterwarnings("error")
    def test_bounds_that_cannot_be(self, bounds: Any) -> None:
        with pytest.raises(InputError, match="ends that never decrease") as caught:
            ov.RangePartitionBook(bounds)
        assert caught.value.remedy

    @pytest.mark.parametrize(
        "bounds", [(3, 6), range(3, 9, 3), np.array([3, 6], dtype=np.uint64), [np.int8(3), 6]]
    )
    def test_bounds_of_any_kind_of_whole_number(self, bounds: Any) -> None:
        assert ov.RangePartitionBook(bounds).partition_bounds.tolist() == [3, 6]

    @pytest.mark.parametrize("number", [-1, 1, 2**70, None, "0", 0.0, False, [0]])
    def test_no_such_partition(self, number: Any) -> None:
        with pytest.raises(InputError, match="1 partitions") as caught:
            ov.RangePartitionBook([5]).partition_range(number)
        assert caught.value.remedy

    def test_a_later_write_to_the_bounds_moves_nothing(self) -> None:
        bounds = torch.tensor([3, 6])
        book = ov.RangePartitionBook(bounds)
        bounds[0] = 5
        assert int(book[torch.tensor(4)]) == 1

    def test_it_travels(self) -> None:
        book = ov.RangePartitionBook([3, 6])
        back = pickle.loads(pickle.dumps(book))
        assert back[torch.tensor([2, 3])].tolist() == [0, 1]
        assert repr(book) == "RangePartitionBook(num_partitions=2, num_ids=6)"


class TestTables:
    @pytest.mark.parametrize(
        ("count", "dtype"),
        [
            (1, torch.uint8),
            (255, torch.uint8),
            (256, torch.uint8),
            (257, torch.uint16),
            (65_536, torch.uint16),
            (65_537, torch.uint32),
        ],
    )
    @pytest.mark.parametrize("given", [True, False])
    def test_the_narrowest_dtype_that_holds_every_partition(
        self, count: int, dtype: torch.dtype, given: bool
    ) -> None:
        table = torch.arange(count).flip(0)
        book = ov.TensorPartitionBook(table, count if given else None)
        assert (book.dtype, book.num_partitions, book.num_ids) == (dtype, count, count)
        assert torch.equal(book[torch.arange(count)], table)
        assert narrowest_dtype(count) == dtype

    def test_the_number_of_partitions_decides_not_what_occurs(self) -> None:
        book = ov.TensorPartitionBook(torch.tensor([0, 1]), 300)
        assert (book.dtype, book.num_partitions) == (torch.uint16, 300)

    @pytest.mark.parametrize("dtype", INTEGERS, ids=str)
    def test_tables_and_ids_of_any_integer_dtype(self, dtype: torch.dtype) -> None:
        book = ov.TensorPartitionBook(torch.tensor([2, 0, 1, 2]).to(dtype))
        found = book[torch.tensor([[3, 1], [0, 2]]).to(dtype)]
        assert found.dtype == torch.int64 and found.tolist() == [[2, 0], [2, 1]]

    def test_a_narrow_table_is_kept_without_a_copy(self) -> None:
        table = torch.tensor([0, 1], dtype=torch.uint8)
        assert ov.TensorPartitionBook(table).partitions.data_ptr() == table.data_ptr()

    @pytest.mark.parametrize("wrong", [-1, 4])
    def test_an_id_that_is_not_there(self, wrong: int) -> None:
        book = ov.TensorPartitionBook(torch.tensor([0, 1, 0, 1]))
        with pytest.raises(InputError, match="0 to 4, exclusive") as caught:
            book[torch.tensor([wrong])]
        assert caught.value.value == str(wrong)

    @pytest.mark.parametrize(
        ("table", "count"),
        [
            *(([0, -1], None), ([0, 3], 3), ([0], 0), ([0, 1 << 32], None)),
            *(([0], count) for count in [(1 << 32) + 1, 2**70, -1, 2.5, 1.0, True, "1", 1j, [1]]),
        ],
    )
    def test_tables_that_cannot_be(self, table: list[int], count: Any) -> None:
        with pytest.raises(InputError, match="partition table") as caught:
            ov.TensorPartitionBook(torch.tensor(table), count)
        assert caught.value.remedy

    def test_the_number_of_partitions_is_a_plain_int(self) -> None:
        assert type(ov.TensorPartitionBook(torch.tensor([0]), np.int8(7)).num_partitions) is int

    def test_as_many_partitions_as_the_widest_dtype_holds(self) -> None:
        book = ov.TensorPartitionBook(torch.tensor([0, (1 << 32) - 1]), 1 << 32)
        assert book.dtype == narrowest_dtype(1 << 32) == torch.uint32
        assert book[torch.tensor([1, 0])].tolist() == [(1 << 32) - 1, 0]
        assert pickle.loads(pickle.dumps(book)).num_partitions == 1 << 32

    def test_no_ids(self) -> None:
        book = ov.TensorPartitionBook(torch.empty(0, dtype=torch.int64), 8)
        assert (book.num_ids, book.num_partitions, book.dtype) == (0, 8, torch.uint8)
        assert book[torch.empty(0, dtype=torch.int64)].tolist() == []
        assert ov.TensorPartitionBook(torch.empty(0, dtype=torch.int64)).num_partitions == 0

    def test_what_is_no_table_of_integers(self) -> None:
        for table in (torch.ones(3), torch.ones(3, dtype=torch.bool), [0, 1], *NOT_DENSE):
            with pytest.raises(UnsupportedTensorError, match="integers") as caught:
                ov.TensorPartitionBook(table)  # type: ignore[arg-type]
            assert caught.value.remedy
        with pytest.raises(InputError, match="one dimension"):
            ov.TensorPartitionBook(torch.zeros(2, 2, dtype=torch.int64))
        with pytest.raises(InputError, match=r"2\*\*32"):
            narrowest_dtype((1 << 32) + 1)

    @pytest.mark.parametrize("count", [3, 300, 70_000])
    def test_from_disk_it_crosses_processes_by_path(self, count: int, spill_dir: Path) -> None:
        book = spilled_book(count)
        for dumps in (cloudpickle.dumps, ForkingPickler.dumps, loky_dumps):
            data = bytes(dumps(book))
            assert len(data) < 1024 and os.fsencode(str(spill_dir)) in data
            back = pickle.loads(data)
            assert back.partitions.data_ptr() == book.partitions.data_ptr()
            assert back.num_partitions == count and int(back[torch.tensor(count - 1)]) == count - 1

    @pytest.mark.parametrize("count", [3, 300, 70_000])
    def test_a_checkpoint_has_its_bytes_and_outlives_the_file(
        self, count: int, spill_dir: Path
    ) -> None:
        book = spilled_book(count)
        checkpoint = io.BytesIO()
        torch.save({"book": book}, checkpoint)
        kept = [pickle.dumps(book), checkpoint.getvalue()]
        ids = torch.arange(book.num_ids)
        expected = book[ids]
        assert ov.discard(book.partitions)
        del book
        for data in kept:
            assert os.fsencode(str(spill_dir)) not in data and len(data) > len(ids)
        checkpoint.seek(0)
        for back in (pickle.loads(kept[0]), torch.load(checkpoint, weights_only=False)["book"]):
            assert torch.equal(back[ids], expected) and back.num_partitions == count
            assert not ov.is_disk_backed(back.partitions)

    def test_after_discard_copies_work_and_only_a_send_is_refused_by_its_receiver(
        self, spill_dir: Path
    ) -> None:
        book = spilled_book(3)
        ov.discard(book.partitions)
        copied = copy.copy(book)
        assert copied.partitions.data_ptr() == book.partitions.data_ptr()
        assert int(copied[torch.tensor(2)]) == int(copy.deepcopy(book)[torch.tensor(2)]) == 2
        assert len(pickle.dumps(book)) > 3000
        for dumps in (cloudpickle.dumps, ForkingPickler.dumps):
            data = dumps(book)
            with pytest.raises(StaleFileError, match="cannot look at the file"):
                pickle.loads(data)

    def test_in_memory_it_pickles_by_value(self, no_spill_dir: None) -> None:
        book = ov.TensorPartitionBook(torch.tensor([0, 300]))
        back = pickle.loads(pickle.dumps(book))
        assert back[torch.tensor([1])].tolist() == [300] and back.num_partitions == 301

    def test_a_deep_copy_is_in_memory_and_no_alias(self, spill_dir: Path) -> None:
        table = torch.tensor([0, 1], dtype=torch.uint8)
        book = ov.TensorPartitionBook(ov.spill_tensor_to_disk(table, required=True), 7)
        deep = copy.deepcopy(book)
        deep.partitions[0] = 5
        assert int(book[torch.tensor(0)]) == 0 and deep.num_partitions == 7
        assert not ov.is_disk_backed(deep.partitions)


@pytest.mark.parametrize(
    "ids",
    [torch.ones(2), torch.tensor([True]), [0], 0, slice(0, 1), None, 2**70, *NOT_DENSE],
    ids=type,
)
def test_only_tensors_of_integers_are_looked_up(ids: Any) -> None:
    books: list[PartitionBook] = [
        ov.RangePartitionBook([3]),
        ov.TensorPartitionBook(torch.tensor([0])),
    ]
    for book in books:
        with pytest.raises(UnsupportedTensorError, match="integer ids"):
            book[ids]


def test_both_kinds_agree() -> None:
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        bounds = torch.randint(0, 50, (9,), generator=generator).cumsum(0)
        ranges = ov.RangePartitionBook(bounds)
        ids = torch.arange(ranges.num_ids)
        table = ov.TensorPartitionBook(ranges[ids], 9)
        assert torch.equal(table[ids], ranges[ids])
