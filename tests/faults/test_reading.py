"""Rows read from a disk that fails and from files that are cut: an error, never a signal."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from capabilities import requires
from confined import make_cold
from overspill.errors import MappingError, StaleFileError
from overspill.graph.dataset import open_dataset
from overspill.graph.paged import PagedArray
from overspill.linux.safe_read import SafeReader
from small_graphs import write_array, write_graph

ROWS = 12_000


def opened(path: Path) -> tuple[PagedArray, np.ndarray]:
    rows = np.random.default_rng(1).integers(0, 255, (ROWS, 512)).astype(np.uint8)
    record = write_array(path, rows)
    return PagedArray(path, record, stride_bytes=512, span_bytes=512), rows


@requires("loop_device")
@pytest.mark.parametrize("method", ["process_vm_readv", "preadv"])
@pytest.mark.parametrize("count", [20, 3_000])
def test_a_disk_that_fails_is_an_error(
    loop_disk: Callable[[int], Path], method: Any, count: int
) -> None:
    disk = loop_disk(16 << 20)
    image = disk.with_suffix(".img")
    array, rows = opened(disk / "rows")
    array._reader = SafeReader(array.mapping, method=method)
    ids = np.random.default_rng(2).integers(0, ROWS, count)
    out = np.zeros((count, 512), np.uint8)
    make_cold(disk / "rows")
    with FailingDisk(image):
        with pytest.raises(MappingError) as caught:
            array.take(ids, out)
        assert caught.value.errno == errno.EIO
        assert caught.value.path == str(disk / "rows") and caught.value.remedy
    array.take(ids, out)
    np.testing.assert_array_equal(out, rows[ids])
    del array, caught  # the error's traceback holds the mapping, and so keeps the disk busy
    gc.collect()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_hundred_cuts_between_the_check_and_the_copy(
    tmp_path: Path, run_python: Callable[..., Any], when: str
) -> None:
    result = run_python(
        """
        import os, shutil, sys
        from pathlib import Path
        import numpy as np
        from confined import make_cold
        from overspill.errors import StaleFileError
        from overspill.graph.paged import PagedArray
        from small_graphs import write_array

        place, when = Path(sys.argv[1]), sys.argv[2]
        rows = np.random.default_rng(1).integers(0, 255, (4_000, 512)).astype(np.uint8)
        record = write_array(place / "source", rows)
        rng = np.random.default_rng(2)
        for round in range(100):
            path = place / f"rows_{round}"
            shutil.copy(place / "source", path)
            array = PagedArray(path, record, stride_bytes=512, span_bytes=512)
            make_cold(path)
            ids = rng.integers(0, 4_000, 1_000)
            ids[0] = 3_999
            ask = array._fetcher.request

            def cut_then(firsts, counts):
                ask(firsts, counts)
                os.truncate(path, left)

            left = int(rng.integers(0, record.nbytes))
            array.check_unchanged()
            if when == "before":
                os.truncate(path, left)
            else:
                array._fetcher.request = cut_then
            try:
                array.take(ids, np.empty((1_000, 512), np.uint8))
            except StaleFileError:
                print("refused")
            path.unlink()
        """,
        arguments=[tmp_path, when],
    )
    assert result.check().stdout.split() == ["refused"] * 100


def test_a_cut_within_a_page_during_a_gather_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel hands out zeros behind it, and no error: only the size tells."""
    x = np.ones((40, 64), np.float32)
    graph = write_graph(tmp_path / "ds", np.zeros(41, np.int64), np.zeros(0, np.int32), {"x": x})
    dataset = open_dataset(graph.path)
    path = graph.path / "node.x"
    take = PagedArray.take

    def cut_first(array: PagedArray, *arguments: Any, **options: Any) -> None:
        os.truncate(path, path.stat().st_size - 100)
        take(array, *arguments, **options)

    monkeypatch.setattr(PagedArray, "take", cut_first)
    with pytest.raises(StaleFileError, match="changed"):
        dataset.gather("x", torch.arange(40))


class FailingDisk:
    """The disk's image ends after its first MiB for the span."""

    def __init__(self, image: Path) -> None:
        self._image = image
        self._kept = b""

    def __enter__(self) -> None:
        os.sync()
        with self._image.open("rb+") as file:
            file.seek(1 << 20)
            self._kept = file.read()
            file.truncate(1 << 20)
        drop_all(self._image)

    def __exit__(self, *_: object) -> None:
        with self._image.open("rb+") as file:
            file.seek(1 << 20)
            file.write(self._kept)


def drop_all(image: Path) -> None:
    """The loop device keeps pages of the image of its own."""
    found = subprocess.run(
        ["losetup", "--associated", str(image), "--noheadings", "--output", "NAME"],
        check=True,
        capture_output=True,
        text=True,
    )
    subprocess.run(["blockdev", "--flushbufs", found.stdout.strip()], check=True)
