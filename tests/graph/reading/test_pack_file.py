"""One file of a pack: what it leaves in the cache, and what it says of a disk that refuses."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overspill.errors import MappingError
from overspill.graph.reading import packing
from overspill.graph.reading.pack_file import PackFile
from overspill.graph.reading.pack_manifest import PackRecipe
from overspill.graph.reading.pack_writer import PackWriter
from overspill.graph.reading.packing import Pack, open_pack
from overspill.linux.cache import cached_bytes
from reading_graphs import write_wide
from small_graphs import write_array

MIB = 1 << 20


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    dataset = write_wide(tmp_path / "ds", {"x": ("uint8", np.zeros((9, 4), np.uint8))}, 9)
    recipe = PackRecipe(dataset=dataset.manifest.identifier, seed=0, arrays={})
    with PackWriter(tmp_path / "pack", dataset, recipe) as writer:
        writer.append({"ends": np.arange(6)})
        writer.finish()
    made = open_pack(tmp_path / "pack", recipe)
    assert made is not None
    return made


def test_what_others_are_about_to_read_stays_in_the_cache(tmp_path: Path) -> None:
    rows = np.zeros((24 << 20, 1), np.uint8)
    record = write_array(tmp_path / "rows", rows)
    file = PackFile(tmp_path / "rows", record)
    try:
        out = np.empty(8 << 20, np.uint8)
        file.read(16 << 20, out)  # to the end, behind which nothing is read ahead
        assert cached_bytes(tmp_path / "rows") < 2 * MIB
        with (tmp_path / "rows").open("rb") as other:
            os.posix_fadvise(other.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no more than this
            other.read(8 << 20)
        held = cached_bytes(tmp_path / "rows")
        file.read(16 << 20, out)
        assert 7 * MIB < held <= cached_bytes(tmp_path / "rows") < held + 4 * MIB
    finally:
        file.close()


def test_threads_that_read_first_together_leave_one_file_open(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[PackFile] = []

    def read_ends() -> None:
        pack.read_part(0, "ends", torch.empty(6, dtype=torch.int64))

    class Slow(PackFile):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)
            if len(made) == 1:
                other = threading.Thread(target=read_ends)
                other.start()
                other.join()

    monkeypatch.setattr(packing, "PackFile", Slow)
    read_ends()
    pack.close()
    assert [file._fd for file in made] == [-1, -1]


def test_a_disk_that_refuses_is_no_changed_file(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", refuse)
    with pack:
        with pytest.raises(MappingError, match="refused to read") as caught:
            pack.read_part(0, "ends", torch.empty(6, dtype=torch.int64))
        assert caught.value.errno == errno.EIO
