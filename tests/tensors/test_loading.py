"""What `load_spilled_tensor` refuses before anything is opened or mapped."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import overspill as ov
from capabilities import requires
from overspill.errors import InputError, MappingError
from spilling import spill_files


def test_with_an_empty_shape_a_device_a_pipe_and_a_directory_are_no_tensor(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place, number in (
        ("/dev/null", errno.EINVAL),
        (tmp_path / "pipe", errno.EINVAL),
        (tmp_path, errno.EISDIR),
    ):
        with pytest.raises(MappingError, match="not a regular file") as caught:
            ov.load_spilled_tensor(place, torch.float32, (0,))
        assert caught.value.errno == number and caught.value.remedy


def test_an_empty_file_is_an_empty_tensor(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert ov.load_spilled_tensor(tmp_path / "file", torch.float32, (3, 0)).shape == (3, 0)


@requires("private_mount")
def test_an_empty_file_that_cannot_be_written_is_refused_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir()
    (tmp_path / "ro" / "file").touch()
    place = str(tmp_path / "ro")
    subprocess.run(["mount", "--bind", place, place], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        with pytest.raises(MappingError, match="Read-only"):
            ov.load_spilled_tensor(tmp_path / "ro" / "file", torch.float32, (0,))
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize(
    "ask",
    [
        lambda path: ov.load_spilled_tensor(path, torch.uint8, 3),
        ov.has_live_mapping,
        ov.release_page_cache_by_path,
        ov.open_dataset,
    ],
)
@pytest.mark.parametrize("name", ["cut\0short", "\0", 3])
def test_a_path_that_cannot_be_is_refused_wherever_it_enters(
    ask: Callable[[object], object], name: object, tmp_path: Path
) -> None:
    (tmp_path / "cut").write_bytes(b"abc")
    given = f"{tmp_path}/{name}" if isinstance(name, str) else name
    with pytest.raises(InputError, match="path") as caught:
        ask(given)
    assert caught.value.remedy


def test_a_name_that_torch_cannot_take(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff")
    path.write_bytes(bytes(40))
    with pytest.raises(MappingError, match="UTF-8") as caught:
        ov.load_spilled_tensor(path, torch.float32, (10,))
    str(caught.value).encode()  # it can be printed


class TestSparseFiles:
    def test_refused_and_left_as_they_were_until_their_blocks_are_reserved(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(range(100)))
        os.truncate(path, 1 << 20)
        before = path.stat()
        with pytest.raises(MappingError, match="is sparse") as caught:
            ov.load_spilled_tensor(path, torch.uint8, 1 << 20)
        assert (path.stat().st_blocks, path.stat().st_mtime_ns) == (
            before.st_blocks,
            before.st_mtime_ns,
        )
        assert caught.value.needed_bytes == 1 << 20
        assert 0 < (caught.value.available_bytes or 0) < 1 << 20
        remedy = str(caught.value.remedy).split(": ")[1].replace("FILE", str(path))
        subprocess.run(remedy.split(), check=True)
        loaded = ov.load_spilled_tensor(path, torch.uint8, 1 << 20)
        assert loaded[:100].tolist() == list(range(100)) and int(loaded[100:].sum()) == 0

    def test_what_is_reserved_and_not_yet_written_to_is_not_sparse(self, spill_dir: Path) -> None:
        ov.allocate_disk_backed((1 << 20,), torch.uint8, required=True)
        (path,) = spill_files(spill_dir)
        assert ov.load_spilled_tensor(path, torch.uint8, 1 << 20).numel() == 1 << 20
