"""What the logger ``overspill`` is told, and how loudly."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import overspill as ov
from overspill.storage.leases import found_run, reclaim_dead_runs
from spilling import spill_files

Told = list[tuple[str, str]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Told]:
    """(level, message) of each record, from info upwards, as it comes."""
    found: Told = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.levelname, record.getMessage()))

    logger, handler = logging.getLogger("overspill"), Handler()
    logger.addHandler(handler)
    with caplog.at_level(logging.INFO, logger="overspill"):
        yield found
    logger.removeHandler(handler)


@pytest.fixture
def run(spill_dir: Path, told: Told) -> Path:
    """A run that has begun, which is told, too."""
    ov.prepare_spill_dir()
    told.clear()
    return spill_dir


def the_only(told: Told, level: str) -> str:
    (message,) = [message for found, message in told if found == level]
    return message


@pytest.mark.parametrize("done", ["spilled", "allocated", "allocated in its final home"])
def test_what_goes_to_disk_is_info_with_shape_dtype_bytes_and_path(
    done: str, run: Path, told: Told
) -> None:
    if done == "spilled":
        ov.spill_tensor_to_disk(torch.zeros(32, 8), required=True)
    elif done == "allocated":
        ov.allocate_disk_backed((32, 8), torch.float32, required=True)
    else:
        ov.allocate_preshared((32, 8), torch.float32)
    ((level, message),) = told
    (path,) = spill_files(run)
    assert level == "INFO" and message.startswith(done.split()[0])
    for part in ("(32, 8)", "torch.float32", "1.0 KiB", str(path)):
        assert part in message


def test_what_goes_to_shared_memory_is_info(no_spill_dir: None, told: Told) -> None:
    with ov.settings(min_bytes=1):
        ov.allocate_preshared((32, 8), torch.float32)
        ov.concatenate_chunks([(torch.zeros(32, 8),)])
    assert [level for level, _ in told] == ["INFO", "INFO"]
    for _, message in told:
        assert "(32, 8)" in message and "1.0 KiB" in message and "in /dev/shm" in message


def test_concatenated_outputs_say_their_file(run: Path, told: Told) -> None:
    ov.concatenate_chunks([(torch.zeros(32, 8),)])
    (path,) = spill_files(run)
    assert "(32, 8)" in the_only(told, "INFO") and str(path) in the_only(told, "INFO")


def test_what_was_reclaimed_is_info_with_bytes_and_path(tmp_path: Path, told: Told) -> None:
    directory, lease = found_run(tmp_path)
    (directory / "spill_0123456789abcdef.bin").write_bytes(bytes(10))
    os.close(lease)
    assert len(reclaim_dead_runs(tmp_path)) == 1
    assert told == [("INFO", f"reclaimed {directory}: 1 files, 10 bytes")]


def test_what_was_released_is_info_with_bytes_and_path(run: Path, told: Told) -> None:
    tensor = ov.spill_tensor_to_disk(torch.zeros(1024), required=True)
    path = tensor.untyped_storage().filename
    told.clear()
    assert ov.release_page_cache(tensor)
    del tensor
    assert ov.release_page_cache_by_path(path)
    assert [level for level, _ in told] == ["INFO", "INFO"]
    assert all(message.startswith(f"released {path}: ") for _, message in told)
    assert "of 4096 resident bytes" in told[0][1]


def test_a_release_that_was_refused_is_an_error_and_not_released(
    run: Path, told: Told, tmp_path: Path
) -> None:
    tensor = ov.spill_tensor_to_disk(torch.zeros(1024), required=True)
    path = Path(tensor.untyped_storage().filename)
    told.clear()
    assert not ov.release_page_cache_by_path(path)  # mapped here
    assert not ov.release_page_cache_by_path(tmp_path)  # a directory
    path.unlink()
    assert not ov.release_page_cache(tensor)
    assert [level for level, _ in told] == ["ERROR"] * 3
    assert all(message.startswith("could not release ") for _, message in told)
    told.clear()
    assert not ov.release_page_cache(torch.zeros(10))  # nothing to release is no refusal
    assert told == []


def test_a_scatter_that_must_go_to_disk_is_a_warning_and_says_where(run: Path, told: Told) -> None:
    with ov.settings(random_access_reserve_bytes=1 << 60):
        ov.allocate_preshared((32, 8), torch.float32, random_access=True)
    (path,) = spill_files(run)
    assert "must go to disk" in the_only(told, "WARNING")
    assert str(path) in the_only(told, "INFO")


class TestRefusals:
    """An error each time, so that a job that runs without its disk says so as often."""

    @pytest.fixture
    def unusable(self, tmp_path: Path) -> Iterator[None]:
        (tmp_path / "file").touch()
        with ov.settings(spill_dir=tmp_path / "file", min_bytes=1):
            yield

    def test_by_the_spill_directory(self, unusable: None, told: Told) -> None:
        for _ in range(2):
            assert ov.spill_tensor_to_disk(torch.zeros(32, 8)) is None
            assert ov.allocate_disk_backed((32, 8), torch.float32) is None
            assert ov.allocate_preshared((32, 8), torch.float32).is_shared()
            ov.concatenate_chunks([(torch.zeros(32, 8),)])
        errors = [message for level, message in told if level == "ERROR"]
        assert len(errors) == 8
        for message in errors:
            assert "(32, 8) torch.float32" in message and "is a file" in message

    def test_by_a_full_disk(self, run: Path, told: Told) -> None:
        with ov.settings(disk_limit_bytes=1000):
            for _ in range(2):
                assert ov.spill_tensor_to_disk(torch.zeros(32, 8)) is None
                assert ov.allocate_preshared((32, 8), torch.float32).is_shared()
        assert [level for level, _ in told if level != "INFO"] == ["ERROR"] * 4

    def test_none_where_spilling_is_off_or_memory_comes_first(
        self, no_spill_dir: None, told: Told, tmp_path: Path
    ) -> None:
        with ov.settings(min_bytes=1):
            assert ov.spill_tensor_to_disk(torch.zeros(32, 8)) is None
            ov.allocate_preshared((32, 8), torch.float32)
            (tmp_path / "file").touch()
            with ov.settings(spill_dir=tmp_path / "file"):
                ov.allocate_preshared((32, 8), torch.float32, random_access=True)
                assert ov.plan_placement((32, 8), torch.float32).home == "shm"
        assert {level for level, _ in told} == {"INFO"}
