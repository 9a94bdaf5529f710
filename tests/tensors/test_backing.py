from __future__ import annotations

import copy
import io
import os
import pickle
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import overspill as ov
from capabilities import requires
from overspill.errors import StaleFileError, UnsupportedTensorError
from overspill.linux.mapping import map_file
from overspill.tensors.backing import file_behind
from overspill.tensors.mapping import wrap_mapping


@pytest.mark.parametrize(
    "held",
    [
        torch.ones(3),
        torch.empty(0),
        torch.tensor(1),
        torch.empty(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        torch.nn.UninitializedParameter(),
        torch.nn.UninitializedBuffer(),
        torch._efficientzerotensor(3),
        torch._to_functional_tensor(torch.ones(3)),
        np.ones(3),
        "tensor",
        None,
        torch.float32,
    ],
    ids=lambda held: type(held).__name__,
)
def test_everything_else_is_not_disk_backed(held: object) -> None:
    assert not ov.is_disk_backed(held)


def test_what_raises_at_every_question_is_not_disk_backed() -> None:
    class Contrary(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_arguments: object, **_options: object) -> object:
            raise ValueError("ask somebody else")

    assert not ov.is_disk_backed(torch.ones(3).as_subclass(Contrary))
    gone = weakref.proxy(torch.ones(3))
    with pytest.raises(ReferenceError):
        isinstance(gone, torch.Tensor)
    assert not ov.is_disk_backed(gone)


def test_an_uninitialized_parameter_goes_torchs_own_way(spill_dir: Path) -> None:
    lazy = torch.nn.UninitializedParameter()
    assert ov.spill_tensor_to_disk(lazy) is None
    assert not ov.discard(lazy) and not ov.release_page_cache(lazy)
    for ask in (ov.handle, ov.residency, ov.share_memory):
        with pytest.raises(UnsupportedTensorError):
            ask(lazy)
    assert list(spill_dir.glob("*/spill_*")) == []


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_shared_memory_is_not_disk(strategy: str) -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        assert not ov.is_disk_backed(torch.ones(10).share_memory_())
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


def test_fake_and_functorch_tensors_are_not_disk_backed() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert not ov.is_disk_backed(torch.ones(3))
    seen = []
    torch.vmap(lambda row: seen.append(ov.is_disk_backed(row)) or row)(torch.ones(2, 3))
    assert seen == [False]


def test_views_and_reinterpretations_are_as_disk_backed_as_their_base(spill_dir: Path) -> None:
    spilled = ov.spill_tensor_to_disk(torch.arange(24.0).view(4, 6), required=True)
    for view in (spilled[1:], spilled.t(), spilled[2, 3], spilled.view(torch.int32), spilled[:0]):
        assert ov.is_disk_backed(view)
    assert ov.is_disk_backed(torch.from_numpy(spilled.numpy()[1:, 2:]))
    assert ov.is_disk_backed(torch.nn.Parameter(spilled))
    for copied in (spilled.clone(), spilled + 1, copy.deepcopy(spilled)):
        assert not ov.is_disk_backed(copied)


def test_it_stays_disk_backed_after_its_file_was_unlinked(spill_dir: Path) -> None:
    spilled = ov.spill_tensor_to_disk(torch.arange(24), required=True)
    Path(spilled.untyped_storage().filename).unlink()
    assert ov.is_disk_backed(spilled)
    assert int(spilled.sum()) == 276


class TestPrivateMappings:
    def test_a_wrapped_mapping_is_disk_backed_and_its_writes_stay_here(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "array"
        path.write_bytes(bytes(4096) + bytes(range(48)))
        mapping = map_file(path, nbytes=4144)
        tensor = wrap_mapping(mapping, dtype=torch.uint8, shape=(6, 8), payload_offset=4096)
        other = wrap_mapping(mapping, dtype=torch.int16, shape=(24,), payload_offset=4096)
        assert ov.is_disk_backed(tensor) and ov.is_disk_backed(tensor[2:, ::2])
        assert tensor.data_ptr() == other.data_ptr()
        tensor[0, 0] = 200
        assert path.read_bytes()[4096] == 0
        del mapping
        assert int(tensor[5, 7]) == 47

    def test_zero_sized_arrays(self, tmp_path: Path) -> None:
        path = tmp_path / "array"
        path.write_bytes(bytes(4096))
        mapping = map_file(path, nbytes=4096)
        tensor = wrap_mapping(mapping, dtype=torch.float32, shape=(0, 128), payload_offset=4096)
        assert tensor.shape == (0, 128)

    @pytest.mark.parametrize(("shape", "offset"), [((1025,), 0), ((1,), 4094), ((1,), 4096)])
    def test_what_does_not_fit_is_refused(
        self, shape: tuple[int, ...], offset: int, tmp_path: Path
    ) -> None:
        path = tmp_path / "array"
        path.write_bytes(bytes(4096))
        mapping = map_file(path, nbytes=4096)
        with pytest.raises(OSError, match="cannot hold"):
            wrap_mapping(mapping, dtype=torch.float32, shape=shape, payload_offset=offset)


class TestUsersOwnMappings:
    def test_disk_backed_also_by_a_relative_name_and_after_unlink(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("own").write_bytes(bytes(80))
        tensor = torch.from_file("own", shared=True, size=20)
        assert ov.is_disk_backed(tensor)
        Path("own").unlink()
        assert ov.is_disk_backed(tensor)

    @pytest.mark.parametrize("mapped", [4096, 8192])
    def test_the_whole_file_loads_over_a_mapping_of_overspills_own(
        self, mapped: int, tmp_path: Path
    ) -> None:
        path = tmp_path / "own"
        path.write_bytes(bytes(8192))
        own = torch.from_file(str(path), shared=True, size=mapped, dtype=torch.uint8)
        assert ov.is_disk_backed(own)
        loaded = ov.load_spilled_tensor(path, torch.uint8, 8192)
        own[9] = 7
        record = file_behind(loaded)
        assert int(loaded[9]) == 7 and record is not None and record.ours
        assert ov.handle(own).open().data_ptr() == loaded.data_ptr()

    @requires("private_mount")
    def test_a_file_on_tmpfs_is_memory(self, memory_disk: object) -> None:
        place = memory_disk()  # type: ignore[operator]
        (place / "own").write_bytes(bytes(80))
        tensor = torch.from_file(str(place / "own"), shared=True, size=20)
        assert not ov.is_disk_backed(tensor)
        del tensor

    def test_a_private_one_says_no_filename_and_is_not_recognised(self, tmp_path: Path) -> None:
        (tmp_path / "own").write_bytes(bytes(80))
        assert not ov.is_disk_backed(torch.from_file(str(tmp_path / "own"), size=20))


def test_stock_serialisation_carries_bytes_and_never_a_path(spill_dir: Path) -> None:
    values = torch.randn(1000)
    spilled = ov.spill_tensor_to_disk(values, required=True)
    checkpoint = io.BytesIO()
    torch.save({"w": spilled}, checkpoint)
    for data in (pickle.dumps(spilled), checkpoint.getvalue()):
        assert len(data) > 4000
        assert os.fsencode(str(spill_dir)) not in data
    assert torch.equal(pickle.loads(pickle.dumps(spilled)), values)
    checkpoint.seek(0)
    assert torch.equal(torch.load(checkpoint)["w"], values)
    # copy.copy is a new tensor over the same memory, as in stock torch.
    assert copy.copy(spilled).data_ptr() == spilled.data_ptr()
    deep = copy.deepcopy(spilled)
    deep[0] = 5
    assert torch.equal(spilled, values)
    assert deep.untyped_storage().filename is None


def test_a_users_mapping_whose_file_went_before_the_first_look(tmp_path: Path) -> None:
    path = tmp_path / "theirs.bin"
    path.write_bytes(bytes(400))
    theirs = torch.from_file(str(path), shared=True, size=100, dtype=torch.float32)
    path.unlink()
    assert ov.is_disk_backed(theirs)
    with pytest.raises(StaleFileError):
        ov.handle(theirs).open()
