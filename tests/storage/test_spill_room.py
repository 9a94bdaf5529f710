from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import overspill as ov
from capabilities import requires
from overspill.errors import SpillDirError, UnavailableError
from overspill.linux.identity import identify_file
from overspill.settings import inherited_run
from overspill.storage import spill_dirs, workspace
from overspill.storage.spill_files import FLOOR_SHARE, is_spill_file, remove_spill_file, spare_bytes
from overspill.storage.workspace import join_run, leave_runs, run_room


@pytest.fixture(autouse=True)
def runs_left() -> Iterator[None]:
    leave_runs()
    yield
    leave_runs()


class TestRoom:
    def test_what_the_disk_has_above_its_floor(self, tmp_path: Path) -> None:
        held = os.statvfs(tmp_path)
        spare = (held.f_bavail - held.f_blocks // FLOOR_SHARE) * held.f_frsize
        assert abs((run_room(tmp_path) or 0) - spare) < 1 << 30
        assert abs(spare_bytes(tmp_path) - spare) < 1 << 30

    def test_asking_makes_no_run_and_no_directory(self, tmp_path: Path) -> None:
        assert (run_room(tmp_path / "a" / "b") or 0) > 0
        assert list(tmp_path.iterdir()) == [] and inherited_run() is None

    def test_the_disk_limit_less_what_the_run_holds(self, tmp_path: Path) -> None:
        with ov.settings(disk_limit_bytes=1000):
            assert run_room(tmp_path) == 1000
            with join_run(tmp_path).create_spill_file(300) as file:
                file.keep()
            assert run_room(tmp_path) == 700
            leave_runs()
            assert run_room(tmp_path) == 1000  # another run's files are another's

    def test_a_disk_that_does_not_tell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def silent(path: Path) -> int:
            raise UnavailableError("cannot be asked")

        monkeypatch.setattr(workspace, "spare_bytes", silent)
        assert run_room(tmp_path) is None
        assert "unknown" in caplog.text

    @requires("private_mount")
    def test_memory_in_disguise_is_refused(self, memory_disk: Callable[..., Path]) -> None:
        place = memory_disk("tmpfs")
        with pytest.raises(SpillDirError, match="memory"):
            run_room(place / "below")
        assert list(place.iterdir()) == []

    def test_copy_on_write_unless_allowed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spill_dirs, "is_copy_on_write", lambda path: True)
        with pytest.raises(SpillDirError, match="copy-on-write"):
            run_room(tmp_path)
        with ov.settings(allow_cow_disk=True):
            assert run_room(tmp_path) is not None


class TestRemoving:
    def test_the_file_meant_and_no_other(self, tmp_path: Path) -> None:
        with join_run(tmp_path).create_spill_file(10) as file:
            file.keep()
            identity = identify_file(file.fd)
        path = Path(file.path)
        assert is_spill_file(file.path)
        path.rename(tmp_path / "aside")
        assert not remove_spill_file(file.path, identity)  # gone
        path.write_bytes(bytes(10))
        assert not remove_spill_file(file.path, identity)  # replaced
        assert path.exists()
        (tmp_path / "aside").replace(path)
        assert remove_spill_file(file.path, identity)
        assert not path.exists() and not remove_spill_file(file.path, identity)

    @pytest.mark.parametrize(
        "name",
        [
            "spill_0123456789abcdef.bin",
            f"run-{'0' * 32}/x.bin",
            f"run-{'0' * 31}/spill_0123456789abcdef.bin",
            f"run-{'0' * 32}/more/spill_0123456789abcdef.bin",
            f"run-{'0' * 32}/lease",
        ],
    )
    def test_only_spill_files_of_runs_are_such(self, name: str, tmp_path: Path) -> None:
        assert not is_spill_file(str(tmp_path / name))
