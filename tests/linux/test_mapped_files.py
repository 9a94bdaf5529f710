from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from overspill.linux.mapped_files import shared_file_at


def address_of(mapped: mmap.mmap) -> int:
    return int(np.frombuffer(mapped, np.uint8).__array_interface__["data"][0])


@pytest.mark.parametrize("offset", [0, 2 * mmap.ALLOCATIONGRANULARITY])
def test_a_shared_mapping_tells_its_file(tmp_path: Path, offset: int) -> None:
    (tmp_path / "a").write_bytes(bytes(offset + 10_000))
    held = (tmp_path / "a").stat()
    with (tmp_path / "a").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 10_000, access=mmap.ACCESS_READ, offset=offset)
    (tmp_path / "a").rename(tmp_path / "with a space\nand more")
    found = shared_file_at(address_of(mapped) + 7)
    assert found is not None
    assert (found.device, found.inode) == (held.st_dev, held.st_ino)
    assert found.offset == offset + 7
    mapped.close()


def test_what_shows_no_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(10_000))
    with (tmp_path / "a").open("r+b") as file:
        private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    assert shared_file_at(address_of(private)) is None
    private.close()
    assert shared_file_at(np.zeros(3).__array_interface__["data"][0]) is None
    assert shared_file_at(0) is None
