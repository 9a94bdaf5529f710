from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import overspill as ov
from overspill.errors import InputError, NoRoomError, UnsupportedTensorError
from overspill.storage.workspace import leave_runs
from overspill.tensors import concatenate, ownership
from overspill.tensors.concatenate import _freed_bytes
from overspill.tensors.dtypes import MAPPABLE_DTYPES
from overspill.tensors.layouts import bytes_of, tensor_over
from overspill.tensors.shared_memory import SharedSegment
from spilling import open_descriptors, spill_files

HOMES = ["disk", "shm", "memory", "by name"]


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the outputs go: everything into files, segments, plain tensors, named segments."""
    kind = request.param
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(
        "file_system" if kind == "by name" else "file_descriptor"
    )
    if kind == "by name":
        torch.ones(1).share_memory_()  # the socket to torch's manager stays open from the first on
    place = tmp_path / "spill" if kind == "disk" else None
    with ov.settings(spill_dir=place, min_bytes=1 << 40 if kind == "memory" else 1):
        yield kind
        leave_runs()
    torch.multiprocessing.set_sharing_strategy(before)


def made(sizes: list[int]) -> list[tuple[torch.Tensor, ...]]:
    chunks, start = [], 0
    for size in sizes:
        ids = torch.arange(start, start + size)
        chunks.append((ids, ids * 2, (ids[:, None] + torch.arange(3)).to(torch.float32)))
        start += size
    return chunks


@pytest.mark.parametrize("sizes", [[5], [3, 0, 4, 1], [0, 0, 2], [0], [1000, 1, 7000]])
def test_fields_are_concatenated_and_the_list_is_consumed(home: str, sizes: list[int]) -> None:
    chunks = made(sizes)
    expected = [torch.cat(fields) for fields in zip(*chunks, strict=True)]
    before = open_descriptors()
    outputs = ov.concatenate_chunks(chunks)
    assert chunks == []
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(output, wanted) and output.is_contiguous()
        if wanted.numel():
            assert ov.is_disk_backed(output) is (home == "disk")
            assert output.is_shared() is (home != "memory")
    del outputs, output
    assert open_descriptors() - before == set() or home == "disk"  # the run's lease


def test_a_tuple_of_fields_stacks(home: str) -> None:
    chunks = made([4, 0, 3])
    index, features = ov.concatenate_chunks(chunks, fields=[(1, 0), 2])
    assert torch.equal(index, torch.stack([torch.arange(7) * 2, torch.arange(7)]))
    assert index.is_contiguous() and features.shape == (7, 3)


def test_rows_of_any_layout(home: str) -> None:
    chunks = [(torch.arange(12.0).view(3, 4).t(),), (torch.ones(1).expand(2, 3),)]
    (output,) = ov.concatenate_chunks(chunks)
    expected = torch.cat([torch.arange(12.0).view(3, 4).t(), torch.ones(2, 3)])
    assert torch.equal(output, expected)


@pytest.mark.parametrize("dtype", MAPPABLE_DTYPES, ids=str)
def test_rows_of_every_dtype(dtype: torch.dtype, spill_dir: Path) -> None:
    size = dtype.itemsize
    held = torch.arange(8 * size, dtype=torch.uint8) % 2  # bits that a bool can have, too
    rows = tensor_over(held.untyped_storage(), dtype, (2, 4))
    (output,) = ov.concatenate_chunks([(rows[:, ::2],), (rows[1:, :2],)])
    each = held.view(2, 4, size)
    expected = torch.cat([each[:, ::2], each[1:, :2]]).flatten()
    assert output.dtype == dtype and output.shape == (3, 2)
    assert torch.equal(bytes_of(output), expected)


def test_rows_that_are_conjugated_or_negated(home: str) -> None:
    rows = torch.tensor([[1 + 2j, 3 - 4j]])
    conjugated, negated = ov.concatenate_chunks([(rows.conj(), rows.conj().imag)])
    assert conjugated.tolist() == [[1 - 2j, 3 + 4j]] and negated.tolist() == [[-2, 4]]


def test_sharing_the_outputs_copies_nothing(home: str) -> None:
    (output,) = ov.concatenate_chunks([(torch.ones(3),), (torch.zeros(2),)])
    before = output.data_ptr()
    if home != "memory":
        output.share_memory_()
        assert output.data_ptr() == before
    assert output.tolist() == [1, 1, 1, 0, 0]


ONES = torch.ones(2)
LAZY = torch.nn.UninitializedParameter()
QUANTIZED = torch.quantize_per_tensor(ONES, 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("chunks", "fields", "error", "told"),
    [
        ([], None, InputError, "no chunks"),
        ([(ONES,), (ONES.double(),)], None, InputError, "chunk 1 differs"),
        ([(ONES,), (torch.ones(2, 1),)], None, InputError, "chunk 1 differs"),
        ([(ONES,), (ONES, ONES)], None, InputError, "chunk 1 differs"),
        ([(torch.ones(0),), (torch.ones(0).double(),)], None, InputError, "chunk 1 differs"),
        ([(ONES, torch.ones(3))], None, InputError, "different numbers of rows"),
        ([(torch.tensor(1.0),)], None, InputError, "no rows"),
        ([(ONES, ONES)], [0], InputError, "each of the 2 fields once"),
        ([(ONES, ONES)], [0, 0], InputError, "each of the 2 fields once"),
        ([(ONES, ONES)], [(0, 1), 2], InputError, "each of the 2 fields once"),
        ([(ONES, ONES)], [(0, 1), ()], InputError, "each of the 2 fields once"),
        ([(ONES, ONES.double())], [(0, 1)], InputError, "cannot be stacked"),
        ([(torch.eye(2).to_sparse(),)], None, UnsupportedTensorError, "no strided CPU tensor"),
        ([(QUANTIZED,)], None, UnsupportedTensorError, "mappable"),
        ([("text",)], None, UnsupportedTensorError, "str"),
        ([()], None, InputError, "chunk 0 is no tuple of tensors .* is empty"),
        ([(ONES,), None], None, InputError, "chunk 1 is no tuple of tensors .* NoneType"),
        ([ONES], None, InputError, "chunk 0 is no tuple of tensors .* Tensor"),
        ([{0: ONES}], None, InputError, "chunk 0 is no tuple of tensors .* dict"),
        ([(ONES,)], 0, InputError, "each of the 1 fields once"),
        ([(ONES,)], [0.0], InputError, "each of the 1 fields once"),
        ([(ONES,)], ["0"], InputError, "each of the 1 fields once"),
        ([(ONES,)], [None], InputError, "each of the 1 fields once"),
        ([(ONES, ONES)], [False, True], InputError, "each of the 2 fields once"),
        ([(ONES, ONES)], [(0, True)], InputError, "each of the 2 fields once"),
        ([(ONES, ONES)], [[(0,)], 1], InputError, "each of the 2 fields once"),
        ([(ONES, ONES)], [2**70, 1], InputError, "each of the 2 fields once"),
        ([(LAZY,)], None, UnsupportedTensorError, "no strided CPU tensor"),
    ],
)
def test_what_does_not_fit_together_is_refused_and_the_list_kept(
    chunks: list[Any], fields: Any, error: type[Exception], told: str, no_spill_dir: None
) -> None:
    before = list(chunks)
    with pytest.raises(error, match=told) as caught:
        ov.concatenate_chunks(chunks, fields=fields)
    assert caught.value.remedy  # type: ignore[attr-defined]
    assert len(chunks) == len(before)
    assert all(one is other for one, other in zip(chunks, before, strict=True))


@pytest.mark.parametrize("chunks", [None, ((ONES,),), iter([(ONES,)]), (ONES, ONES), {0: (ONES,)}])
def test_only_a_list_can_be_consumed(chunks: Any) -> None:
    with pytest.raises(InputError, match="come in a list") as caught:
        ov.concatenate_chunks(chunks)
    assert "list(chunks)" in str(caught.value.remedy)


def test_numbers_of_fields_of_any_integer_type(no_spill_dir: None) -> None:
    whole = np.arange(3)
    index, last = ov.concatenate_chunks(made([4, 2]), fields=[(whole[1], whole[0]), whole[2]])
    assert index[1].tolist() == list(range(6)) and last.shape == (6, 3)


def test_no_home_leaves_the_list_as_it_was(no_spill_dir: None) -> None:
    chunks = made([5, 6])
    with ov.settings(min_bytes=1, shm_reserve_bytes=1 << 60), pytest.raises(NoRoomError):
        ov.concatenate_chunks(chunks)
    assert [len(chunk[0]) for chunk in chunks] == [5, 6]


@pytest.mark.parametrize("at", [1, 4, 5, 9])
def test_room_that_vanishes_in_the_middle_loses_no_row(
    at: int, no_spill_dir: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = made([5, 6, 7])
    expected = [torch.cat(fields) for fields in zip(*chunks, strict=True)]
    reserve, calls = SharedSegment.reserve, []

    def vanishes(self: SharedSegment, offset: int, nbytes: int) -> None:
        calls.append(nbytes)
        if len(calls) == at:
            raise NoRoomError("no more")
        reserve(self, offset, nbytes)

    monkeypatch.setattr(SharedSegment, "reserve", vanishes)
    with ov.settings(min_bytes=1), pytest.raises(NoRoomError, match="no more"):
        ov.concatenate_chunks(chunks, fields=[(0, 1), 2])
    monkeypatch.undo()
    assert sum(len(chunk[0]) for chunk in chunks) == 18
    order = torch.cat([chunk[0] for chunk in chunks]).argsort()
    for number, wanted in enumerate(expected):
        assert torch.equal(torch.cat([chunk[number] for chunk in chunks])[order], wanted)
    with ov.settings(min_bytes=1):  # and it goes on from there
        outputs = ov.concatenate_chunks(chunks)
    assert torch.equal(outputs[0].sort().values, expected[0])


class TestFreedMemory:
    """What is not the list's alone does not come back, and is not counted on."""

    def test_the_lists_own_chunks_but_for_the_largest(self) -> None:
        chunks = [(torch.ones(100), torch.ones(100, 2)), (torch.ones(300), torch.ones(300, 2))]
        assert _freed_bytes(chunks, 2) == [400, 800]

    def test_chunks_that_somebody_else_holds(self) -> None:
        chunks = [(torch.ones(100),), (torch.ones(100),), (torch.ones(100),)]
        assert _freed_bytes(chunks, 1) == [800]
        held = chunks[0]
        assert _freed_bytes(chunks, 1) == [400]
        del held
        tensor = chunks[1][0]
        assert _freed_bytes(chunks, 1) == [400]
        view = tensor[5:]
        del tensor
        assert _freed_bytes(chunks, 1) == [400]
        del view
        assert _freed_bytes(chunks, 1) == [800]

    def test_whatever_the_interpreter_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Versions of Python differ in how many references a look itself holds."""
        count = sys.getrefcount
        for more in (-1, 1, 2):
            monkeypatch.setattr(sys, "getrefcount", lambda held, more=more: count(held) + more)
            ownership._fresh_counts.cache_clear()
            chunks = [(torch.ones(100),), (torch.ones(100),), (torch.ones(100),)]
            assert _freed_bytes(chunks, 1) == [800]
            held = [chunks[0], chunks[1][0]]
            assert _freed_bytes(chunks, 1) == [0]
            del held
        ownership._fresh_counts.cache_clear()

    def test_a_chunk_or_a_tensor_that_is_in_the_list_twice(self) -> None:
        chunk = (torch.ones(100),)
        chunks = [chunk, chunk, (torch.ones(100),), (torch.ones(100),)]
        del chunk
        assert _freed_bytes(chunks, 1) == [400]
        chunks = [(torch.ones(100),), (torch.ones(100),)]
        chunks.append((chunks[0][0],))
        assert _freed_bytes(chunks, 1) == [0]

    def test_files_hold_no_memory(self, spill_dir: Path) -> None:
        chunks = [(ov.spill_tensor_to_disk(torch.ones(50), required=True),) for _ in range(3)]
        assert _freed_bytes(chunks, 1) == [0]
        (output,) = ov.concatenate_chunks(chunks)
        assert float(output.sum()) == 150
        assert len(spill_files(spill_dir)) == 4


def test_outputs_share_what_room_there_is(no_spill_dir: None, empty_process: None) -> None:
    """Each output alone would fit; together they do not."""
    chunks = [(torch.ones(1000), torch.ones(1000))]
    with (
        ov.settings(min_bytes=1, memory_limit_bytes=7999),
        pytest.raises(NoRoomError, match=r"3\.9 KiB"),
    ):
        ov.concatenate_chunks(chunks)
    with ov.settings(min_bytes=1, memory_limit_bytes=8000):
        assert len(ov.concatenate_chunks(chunks)) == 2


def test_plain_outputs_that_are_not_written_to_yet_take_their_room(
    spill_dir: Path, empty_process: None
) -> None:
    """Both fit one by one: the second goes to the disk, and a third into what the first left."""
    large, small = torch.ones(100, 256), torch.ones(100, 100)  # 100 KiB, and 39 KiB
    with ov.settings(min_bytes=1 << 30, memory_limit_bytes=150 << 10):
        outputs = ov.concatenate_chunks([(large, large, small)])
    assert [ov.is_disk_backed(output) for output in outputs] == [False, True, False]


def test_without_segments_of_ones_own(no_spill_dir: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concatenate, "open_segment", lambda nbytes: None)
    with ov.settings(min_bytes=1):
        outputs = ov.concatenate_chunks(made([3, 4]))
    assert torch.equal(outputs[0], torch.arange(7)) and outputs[0].is_shared()
