from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import overspill as ov
from capabilities import requires
from overspill.errors import DiskRefusedError, StaleFileError, UnsupportedTensorError
from overspill.linux.mapping import map_file
from overspill.storage.workspace import leave_runs
from overspill.tensors.mapping import wrap_mapping
from spilling import spill_files


def spilled(count: int = 100) -> torch.Tensor:
    tensor = ov.spill_tensor_to_disk(torch.arange(count), required=True)
    assert isinstance(tensor, torch.Tensor)
    return tensor


class TestDiscard:
    def test_the_file_goes_and_the_tensor_stays_valid(self, spill_dir: Path) -> None:
        kept, gone = spilled(), spilled()
        assert ov.discard(gone[10:20])
        assert [str(path) for path in spill_files(spill_dir)] == [kept.untyped_storage().filename]
        assert torch.equal(gone, torch.arange(100))
        assert not ov.discard(gone)  # once

    @requires("loop_device")
    def test_the_blocks_come_back_with_the_last_tensor(
        self, spill_dir: Path, loop_disk: Callable[[int], Path]
    ) -> None:
        """On a disk of its own: others write to the test's."""
        disk = loop_disk(96 << 20)
        with ov.settings(spill_dir=disk / "spill"):
            tensor = ov.allocate_disk_backed(64 << 20, torch.uint8, required=True)
            view = tensor[5:]
            free = os.statvfs(disk).f_bavail
            ov.discard(tensor)
            del tensor
            assert int(view.numel()) == (64 << 20) - 5
            assert os.statvfs(disk).f_bavail == free
            del view
            gained = (os.statvfs(disk).f_bavail - free) * os.statvfs(disk).f_frsize
            assert gained >= 64 << 20
            leave_runs()

    def test_it_makes_room_under_the_disk_limit(self, spill_dir: Path) -> None:
        with ov.settings(disk_limit_bytes=1000):
            first = ov.allocate_disk_backed(800, torch.uint8, required=True)
            assert ov.allocate_disk_backed(800, torch.uint8) is None
            ov.discard(first)
            assert ov.allocate_disk_backed(800, torch.uint8) is not None

    def test_a_stale_handle_is_a_clear_error(self, spill_dir: Path) -> None:
        tensor = spilled()
        sent = pickle.dumps(ov.handle(tensor))
        ov.discard(tensor)
        for stale in (pickle.loads(sent), ov.handle(tensor)):
            with pytest.raises(StaleFileError, match="No such file"):
                stale.open()

    def test_what_is_in_memory_has_no_file(self, spill_dir: Path) -> None:
        for tensor in (torch.ones(3), torch.empty(0), torch.eye(2).to_sparse()):
            assert ov.discard(tensor) is False
        with pytest.raises(UnsupportedTensorError, match="not a tensor"):
            ov.discard(None)  # type: ignore[arg-type]

    def test_a_dataset_and_a_users_own_file_are_never_removed(
        self, spill_dir: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "spill_0123456789abcdef.bin"  # not below a run
        path.write_bytes(bytes(80))
        own = torch.from_file(str(path), shared=True, size=20)
        array = wrap_mapping(map_file(path, nbytes=80), dtype=torch.uint8, shape=(80,))
        loaded = ov.load_spilled_tensor(path, torch.uint8, (80,))
        for tensor in (own, array, loaded):
            with pytest.raises(UnsupportedTensorError, match="no spill file"):
                ov.discard(tensor)
        assert path.exists()

    def test_another_file_under_the_name_stays(self, spill_dir: Path, tmp_path: Path) -> None:
        tensor = spilled()
        path = Path(tensor.untyped_storage().filename)
        (tmp_path / "new").write_bytes(bytes(800))
        (tmp_path / "new").replace(path)
        assert not ov.discard(tensor)
        assert path.read_bytes() == bytes(800)

    def test_a_file_that_cannot_be_removed_is_an_error(
        self, spill_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tensor = spilled()

        def refuses(path: str) -> None:
            raise OSError(30, os.strerror(30))

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", refuses)
            with pytest.raises(DiskRefusedError, match="cannot remove") as caught:
                ov.discard(tensor)
        assert caught.value.errno == 30 and caught.value.remedy
        assert ov.discard(tensor)


class TestScope:
    def test_files_go_at_its_end_and_only_those_made_within(self, spill_dir: Path) -> None:
        before = spilled()
        with ov.spill_scope() as scope:
            within = spilled()
            allocated = ov.allocate_disk_backed(10, torch.int8, required=True)
            placed = ov.allocate_preshared(10, torch.int8)
            assert ov.is_disk_backed(placed) and allocated is not None
            assert len(spill_files(spill_dir)) == 4
            assert repr(scope) == "SpillScope(files=3)"
        after = spilled()
        assert len(spill_files(spill_dir)) == 2
        assert torch.equal(within, torch.arange(100))
        assert all(Path(one.untyped_storage().filename).exists() for one in (before, after))

    def test_also_by_an_error(self, spill_dir: Path) -> None:
        with pytest.raises(KeyboardInterrupt), ov.spill_scope():
            spilled()
            raise KeyboardInterrupt
        assert spill_files(spill_dir) == []

    def test_what_is_kept_stays(self, spill_dir: Path) -> None:
        with ov.spill_scope() as scope:
            spilled()
            result = scope.keep(spilled()[5:])
            scope.keep(torch.ones(3))
        assert [str(path) for path in spill_files(spill_dir)] == [result.untyped_storage().filename]

    def test_scopes_nest_and_what_the_inner_keeps_is_the_outers(self, spill_dir: Path) -> None:
        with ov.spill_scope():
            outer = spilled()
            with ov.spill_scope() as inner:
                spilled()
                inner.keep(spilled())
                assert len(spill_files(spill_dir)) == 3
            assert len(spill_files(spill_dir)) == 2
            del outer
        assert spill_files(spill_dir) == []

    def test_what_was_discarded_within_is_no_error(self, spill_dir: Path) -> None:
        with ov.spill_scope():
            ov.discard(spilled())
        assert spill_files(spill_dir) == []

    def test_other_threads_are_not_covered(self, spill_dir: Path) -> None:
        with ov.spill_scope():
            thread = threading.Thread(target=spilled)
            thread.start()
            thread.join()
        assert len(spill_files(spill_dir)) == 1

    def test_a_forked_child_that_leaves_it_frees_nothing(self, spill_dir: Path) -> None:
        with ov.spill_scope() as scope:
            spilled()
            child = os.fork()
            if child == 0:
                try:
                    scope.close()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            assert len(spill_files(spill_dir)) == 1
        assert spill_files(spill_dir) == []

    def test_off_it_does_nothing(self, no_spill_dir: None) -> None:
        with ov.spill_scope() as scope:
            assert ov.spill_tensor_to_disk(torch.ones(4)) is None
        assert repr(scope) == "SpillScope(files=0)"
