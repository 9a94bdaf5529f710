from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import overspill as ov
from overspill.errors import NoRoomError, UnsupportedTensorError
from overspill.linux.mapping import map_file
from overspill.tensors import share_in_place, sharing
from overspill.tensors.mapping import wrap_mapping
from overspill.tensors.share_in_place import moves_by_pieces
from overspill.tensors.shared_memory import SHARED_MEMORY
from spilling import open_descriptors, spill_files

STRATEGIES = ["file_descriptor", "file_system"]


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(request.param)
    yield request.param
    torch.multiprocessing.set_sharing_strategy(before)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of two pages, so that small tensors move by many of them."""
    monkeypatch.setattr(share_in_place, "PIECE_BYTES", 8192)


def shm_used() -> int:
    held = os.statvfs(SHARED_MEMORY)
    return (held.f_blocks - held.f_bfree) * held.f_frsize


class GltRangeBook:
    """What graphlearn_torch's range book looks like from outside."""

    def __init__(self) -> None:
        self.partition_bounds = torch.tensor([3, 6])
        self.partition_idx = 0


class TestShareMemory:
    def test_a_tensor_in_place(self, strategy: str) -> None:
        tensor = torch.arange(10_000)
        assert ov.share_memory(tensor) is None
        assert tensor.is_shared()
        assert torch.equal(tensor, torch.arange(10_000))
        before = tensor.data_ptr()
        ov.share_memory(tensor)
        assert tensor.data_ptr() == before

    def test_none_and_empty_tensors_are_nothing(self, no_spill_dir: None) -> None:
        empty = torch.empty(0, 100)
        for entity in (None, {}, empty, {"a": empty, "b": None}):
            ov.share_memory(entity)
        assert not empty.is_shared() and empty.shape == (0, 100)

    def test_mappings_of_tensors_and_books(self, strategy: str) -> None:
        table = ov.TensorPartitionBook(torch.arange(1000) % 7)
        ranges, foreign = ov.RangePartitionBook([5, 9]), GltRangeBook()
        held: dict[Any, Any] = {
            ("user", "buys", "item"): torch.ones(50),
            "table": table,
            "ranges": ranges,
            "foreign": foreign,
            "nothing": None,
        }
        ov.share_memory(held)
        assert held["user", "buys", "item"].is_shared() and table.partitions.is_shared()
        assert not ranges.partition_bounds.is_shared()
        assert not foreign.partition_bounds.is_shared()
        assert table[torch.tensor([8, 999])].tolist() == [1, 999 % 7]

    @pytest.mark.parametrize("make", [lambda: ov.RangePartitionBook([3, 6]), GltRangeBook])
    def test_range_books_are_left_alone(self, make: Any) -> None:
        book = make()
        before = book.partition_bounds.data_ptr()
        ov.share_memory(book)
        assert book.partition_bounds.data_ptr() == before

    def test_a_table_book_that_is_a_tensor_itself(self) -> None:
        class TensorBook(torch.Tensor):  # as graphlearn_torch's table book is
            pass

        book = torch.arange(10).as_subclass(TensorBook)
        ov.share_memory(book)
        assert book.is_shared() and type(book) is TensorBook

    def test_disk_backed_tensors_are_left_alone(
        self, strategy: str, spill_dir: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "array"
        path.write_bytes(bytes(8192))
        array = wrap_mapping(map_file(path, nbytes=8192), dtype=torch.uint8, shape=(8192,))
        own = torch.from_file(str(path), shared=True, size=100)
        spilled = ov.spill_tensor_to_disk(torch.arange(1000), required=True)
        free = os.statvfs(SHARED_MEMORY).f_bavail
        for tensor in (array, own, spilled, spilled[5:]):
            before = tensor.data_ptr()
            ov.share_memory(tensor)
            assert tensor.data_ptr() == before and ov.is_disk_backed(tensor)
        assert os.statvfs(SHARED_MEMORY).f_bavail == free

    def test_views_of_one_storage_move_together(self, strategy: str, small_pieces: None) -> None:
        base = torch.arange(100_000)
        view = base[5:].view(-1, 5)
        ov.share_memory({"base": base, "view": view})
        base[5] = -1
        assert base.is_shared() and view.is_shared() and int(view[0, 0]) == -1

    def test_other_devices_and_what_cannot_be_shared(self) -> None:
        ov.share_memory(torch.empty(3, device="meta"))
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        for entity in (torch.eye(3).to_sparse(), nested, {"a": torch.eye(3).to_sparse_csr()}):
            with pytest.raises(UnsupportedTensorError, match="cannot be put into shared memory"):
                ov.share_memory(entity)
        for wrong in ([torch.ones(3)], "tensor", {"a": "b"}, np.ones(3)):
            with pytest.raises(UnsupportedTensorError, match="pass a tensor"):
                ov.share_memory(wrong)  # type: ignore[arg-type]

    def test_quantized_tensors(self, strategy: str) -> None:
        tensor = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
        ov.share_memory(tensor)
        assert tensor.is_shared() and tensor.dequantize().tolist() == [1.0] * 4

    def test_it_raises_before_it_overruns_the_mount_and_nothing_has_moved(self) -> None:
        held = {name: torch.ones(1000) for name in "ab"}
        free = os.statvfs(SHARED_MEMORY)
        room = free.f_bavail * free.f_frsize
        with (
            ov.settings(shm_reserve_bytes=room - 7999),
            pytest.raises(NoRoomError, match="/dev/shm has") as caught,
        ):
            ov.share_memory(held)
        assert (caught.value.needed_bytes, caught.value.available_bytes) == (8000, 7999)
        assert "docker run --shm-size" in str(caught.value) and "OVERSPILL_DIR" in str(caught.value)
        assert not any(tensor.is_shared() for tensor in held.values())
        with ov.settings(shm_reserve_bytes=room - 8000):
            ov.share_memory(held)

    def test_a_mapping_that_contains_itself_is_gone_through_once(self) -> None:
        inner: dict[str, Any] = {"a": torch.ones(10)}
        outer = {"inner": inner, "again": inner, "b": torch.ones(3)}
        inner["outer"] = outer
        ov.share_memory(outer)
        assert inner["a"].is_shared() and outer["b"].is_shared()

    def test_memory_that_its_owner_keeps_adds_up(self, empty_process: None) -> None:
        """numpy's stays where it is, one beside the other; torch's goes as it is copied."""
        arrays = [np.zeros(1000, np.float32) for _ in range(3)]
        wrapped = {str(n): torch.from_numpy(array) for n, array in enumerate(arrays)}
        own = torch.ones(500)
        with (
            ov.settings(memory_limit_bytes=13_999),
            pytest.raises(NoRoomError, match="on its way") as caught,
        ):
            ov.share_memory({**wrapped, "own": own})
        assert (caught.value.needed_bytes, caught.value.available_bytes) == (14_000, 13_999)
        assert not own.is_shared() and not wrapped["0"].is_shared()
        with ov.settings(memory_limit_bytes=4000):
            ov.share_memory({str(n): torch.ones(1000) for n in range(3)})
        with ov.settings(memory_limit_bytes=14_000):
            ov.share_memory({**wrapped, "own": own})
        assert wrapped["2"].is_shared()

    def test_it_raises_before_it_overruns_memory(self, empty_process: None) -> None:
        tensor = torch.ones(1000)
        with (
            ov.settings(memory_limit_bytes=3999),
            pytest.raises(NoRoomError, match="on its way") as caught,
        ):
            ov.share_memory(tensor)
        assert (caught.value.needed_bytes, caught.value.available_bytes) == (4000, 3999)
        assert not tensor.is_shared()


class TestByPieces:
    """Nothing is held twice, and whatever goes wrong the tensor is whole."""

    @pytest.mark.parametrize("count", [2049, 4096, 100_003])
    def test_every_byte_arrives(self, count: int, small_pieces: None) -> None:
        tensor = torch.arange(count, dtype=torch.float64)
        assert moves_by_pieces(tensor)
        before = open_descriptors()
        ov.share_memory(tensor)
        assert torch.equal(tensor, torch.arange(count, dtype=torch.float64))
        assert tensor.is_shared() and tensor.is_contiguous()
        assert len(open_descriptors() - before) == 1  # torch's own, as after share_memory_()

    def test_layout_and_flags_are_kept(self, small_pieces: None) -> None:
        source = torch.arange(100_000.0)
        tensor = torch.empty(0).set_(source.untyped_storage(), 3000, (500, 97), (2, 1000))
        del source
        tensor.requires_grad_()
        assert moves_by_pieces(tensor)
        expected = tensor.detach().clone()
        shape, stride, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        ov.share_memory(tensor)
        assert (tensor.shape, tensor.stride(), tensor.storage_offset()) == (shape, stride, offset)
        assert tensor.requires_grad and torch.equal(tensor.detach(), expected)
        (tensor * 2).sum().backward()
        assert tensor.grad is not None

    def test_a_pending_backward_pass_goes_on(self, small_pieces: None) -> None:
        weight = torch.arange(10_000.0, requires_grad=True)
        constant = torch.arange(10_000.0)
        loss = (weight * weight * constant).sum()
        assert moves_by_pieces(weight) and moves_by_pieces(constant)
        ov.share_memory({"weight": weight, "constant": constant})
        assert weight.is_shared() and constant.is_shared()
        loss.backward()
        assert torch.equal(weight.grad, 2 * weight.detach() * constant)
        weight.grad = None
        (weight * 3).sum().backward()
        assert weight.grad.unique().tolist() == [3]

    def test_parameters_of_a_model_move_and_train_on(self, small_pieces: None) -> None:
        model = torch.nn.Linear(100, 100, bias=False)
        before = model.weight.detach().clone()
        assert moves_by_pieces(model.weight)
        ov.share_memory(dict(model.named_parameters()))
        assert isinstance(model.weight, torch.nn.Parameter) and model.weight.is_shared()
        assert torch.equal(model.weight.detach(), before)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.ones(1, 100)).sum().backward()
        optimizer.step()
        assert torch.allclose(model.weight.detach(), before - 1) and model.weight.is_shared()

    def test_only_what_is_alone_moves_so(self, small_pieces: None) -> None:
        alone = torch.arange(10_000)
        assert moves_by_pieces(alone)
        view = alone[1:]
        assert not moves_by_pieces(alone)
        del view
        assert moves_by_pieces(alone)
        storage = alone.untyped_storage()
        assert not moves_by_pieces(alone)
        del storage
        array = np.arange(10_000)
        assert not moves_by_pieces(torch.from_numpy(array))
        held = torch.ones(10_000)
        assert not moves_by_pieces(torch.nn.Parameter(held))
        assert not moves_by_pieces(torch.ones(10_000, requires_grad=True) * 2)
        assert not moves_by_pieces(torch.ones(1000))

    def test_an_array_beneath_a_tensor_keeps_its_values(self, small_pieces: None) -> None:
        array = np.arange(10_000)
        tensor = torch.from_numpy(array)
        ov.share_memory(tensor)
        assert tensor.is_shared() and np.array_equal(array, np.arange(10_000))

    def test_shared_by_name_goes_torchs_own_way(self, small_pieces: None) -> None:
        before = torch.multiprocessing.get_sharing_strategy()
        torch.multiprocessing.set_sharing_strategy("file_system")
        try:
            tensor = torch.arange(10_000)
            assert not moves_by_pieces(tensor)
            ov.share_memory(tensor)
            assert tensor.is_shared()
        finally:
            torch.multiprocessing.set_sharing_strategy(before)

    def test_it_crosses_to_another_process(self, small_pieces: None) -> None:
        tensor = torch.arange(10_000)
        ov.share_memory(tensor)
        context = torch.multiprocessing.get_context("fork")
        queue, answers = context.Queue(), context.Queue()
        child = context.Process(target=lambda: answers.put(int(queue.get().fill_(5).sum())))
        child.start()
        queue.put(tensor)
        assert answers.get(timeout=60) == 50_000
        child.join(60)
        assert tensor.unique().tolist() == [5]
        for one in (queue, answers):
            one.close()
            one.join_thread()


class TestForIpc:
    def test_large_values_on_disk_the_rest_shared_and_the_input_untouched(
        self, strategy: str, spill_dir: Path
    ) -> None:
        spilled = ov.spill_tensor_to_disk(torch.arange(9), required=True)
        held = {
            "large": torch.arange(1000),
            "strided": torch.arange(10.0).view(2, 5).t(),
            "empty": torch.empty(0, 3),
            "spilled": spilled,
            "shared": torch.ones(3).share_memory_(),
            "none": None,
        }
        before = {key: t.data_ptr() for key, t in held.items() if t is not None}
        with ov.settings(min_bytes=1000):
            found = ov.share_memory_for_ipc(held)
        assert list(found) == list(held) and found is not held
        assert ov.is_disk_backed(found["large"])
        strided = found["strided"]
        assert strided is not None and strided.is_shared() and not ov.is_disk_backed(strided)
        for key in ("empty", "spilled", "shared", "none"):
            assert found[key] is held[key]
        for key, tensor in held.items():
            if tensor is not None:
                assert torch.equal(found[key], tensor)
                assert tensor.data_ptr() == before[key]
        assert not held["large"].is_shared() and not held["strided"].is_shared()
        found["strided"].fill_(0)
        assert float(held["strided"].sum()) == 45

    def test_off_everything_is_a_shared_copy(self, no_spill_dir: None) -> None:
        source = torch.ones(100)
        found = ov.share_memory_for_ipc({1: source})
        assert found[1].is_shared() and found[1].data_ptr() != source.data_ptr()

    @pytest.mark.parametrize("min_bytes", [1000, 1 << 30])
    def test_what_is_tied_is_stored_once_and_stays_tied(
        self, min_bytes: int, spill_dir: Path
    ) -> None:
        weight = torch.arange(1000.0).view(20, 50)
        tensors = {
            "none": None,
            "row": weight[3],
            "weight": weight,
            "again": weight,
            "turned": weight.t(),
            "other": torch.zeros(20, 50),
        }
        used = shm_used()
        with ov.settings(min_bytes=min_bytes):
            found = ov.share_memory_for_ipc(tensors)
        assert list(found) == list(tensors) and found["none"] is None
        for name, tensor in tensors.items():
            assert tensor is None or torch.equal(found[name], tensor)
        assert not weight.is_shared()
        if min_bytes == 1000:
            assert sum(file.stat().st_size for file in spill_files(spill_dir)) == 8000
        else:
            assert shm_used() - used == 2 * 4096
        found["weight"][3, 0] = -1
        assert float(found["row"][0]) == float(found["turned"][0, 3]) == -1
        assert found["again"] is found["weight"] and float(found["other"].sum()) == 0

    def test_no_room_leaves_no_file(self, spill_dir: Path) -> None:
        held = {"large": torch.ones(1000), "small": torch.ones(10)}
        with (
            ov.settings(min_bytes=1000, shm_reserve_bytes=1 << 60),
            pytest.raises(NoRoomError, match="/dev/shm has"),
        ):
            ov.share_memory_for_ipc(held)
        assert spill_files(spill_dir) == []

    def test_a_failing_copy_leaves_no_file(
        self, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuses(nbytes: int) -> None:
            raise NoRoomError("no more", needed_bytes=nbytes)

        monkeypatch.setattr(sharing, "shared_storage", refuses)
        with ov.settings(min_bytes=1000), pytest.raises(NoRoomError, match="no more"):
            ov.share_memory_for_ipc({"large": torch.ones(1000), "small": torch.ones(10)})
        gc.collect()
        assert spill_files(spill_dir) == []

    def test_quantized_and_wrong_values(self, no_spill_dir: None) -> None:
        tensor = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
        found = ov.share_memory_for_ipc({"q": tensor})["q"]
        assert found is not None and found.is_shared() and not tensor.is_shared()
        for wrong in (torch.eye(2).to_sparse(), "text", ov.RangePartitionBook([3])):
            with pytest.raises(UnsupportedTensorError):
                ov.share_memory_for_ipc({"a": wrong})  # type: ignore[dict-item]


def test_storages_over_the_same_memory_are_each_shared() -> None:
    held = np.ones(1 << 16, dtype=np.uint8)
    tensors = {place: torch.from_numpy(held) for place in range(3)}
    ov.share_memory(tensors)
    assert all(tensor.is_shared() for tensor in tensors.values())


def test_room_that_vanishes_after_the_look_is_no_room_and_leaves_no_name(
    run_python: Any,
) -> None:
    script = """
        import os, sys
        import torch
        import overspill as ov
        from overspill.tensors import sharing

        torch.multiprocessing.set_sharing_strategy("file_system")
        tensor = torch.ones(12 << 20, dtype=torch.uint8)
        look = sharing.measured_rooms

        def look_and_fill():
            found = look()
            with open("/dev/shm/filler", "wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, 10 << 20)
            return found

        sharing.measured_rooms = look_and_fill
        try:
            ov.share_memory(tensor)
        except ov.OverspillError as error:
            print(type(error).__name__)
        assert bool((tensor == 1).all()) and not tensor.is_shared()
        print(sorted(os.listdir("/dev/shm")))
    """
    told = run_python(script, shm_bytes=16 << 20).check().stdout.split("\n")
    assert told[:2] == ["NoRoomError", "['filler']"]
