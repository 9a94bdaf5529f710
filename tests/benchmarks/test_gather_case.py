"""The gather's cases at a tiny size: that they work, never how fast."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import fio, gather, gather_job
from benchmarks.harness import run_case
from confined import make_cold
from overspill.errors import UnavailableError
from overspill.linux.pages import resident_bytes

SIZE = 4 << 20


@pytest.mark.parametrize("way", gather_job.WAYS)
def test_every_way_reads_the_rows_that_it_was_asked_for(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows"
    gather._write(path, SIZE)
    rows = np.frombuffer(path.read_bytes()[-SIZE:], np.uint8).reshape(-1, 512)
    seen: list[int] = []
    make, batch = gather_job.WAYS[way]

    def checked(path: Path, row_bytes: int) -> Callable[..., None]:
        read = make(path, row_bytes)

        def then_compare(ids: np.ndarray, out: np.ndarray) -> None:
            read(ids, out)
            np.testing.assert_array_equal(out, rows[ids])
            seen.extend(ids.tolist())

        return then_compare

    monkeypatch.setitem(gather_job.WAYS, way, (checked, min(batch, 300)))
    make_cold(path)
    found = gather_job.measured(way, path, 512, 60.0, 1)
    assert found["rows"] == SIZE // 4096 == len({row // 8 for row in seen})
    assert found["wanted_bytes"] == SIZE
    assert found["seconds"] > 0


def test_the_cold_case_runs_in_a_memory_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows"
    gather._write(path, SIZE)
    monkeypatch.setattr(fio, "is_installed", lambda: False)
    case = gather._cold(path, SIZE)
    assert case.limit is None and case.absent == [f"fio ({fio.REMEDY})"]
    assert [one.name for one in case.contenders[:2]] == [gather.OURS, gather.OURS_CONFINED]
    only = replace(case, contenders=case.contenders[1:2], targets=())
    result = run_case(only, rounds=1)
    for sample in result.rounds[0].values():
        assert sample.seconds > 0 and sample.figures["rows a second"] > 0


def test_a_small_file_is_read_for_less_long() -> None:
    gib = 1 << 30
    sizes = (1, gib, 2 * gib + 4096, gather.DEFAULT_BYTES, 64 * gib)
    assert [gather.seconds_for(size) for size in sizes] == [1, 1, 2, 4, 4]


def test_the_warm_and_the_half_warm_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "_WARM_ROWS", 2_000)
    path = tmp_path / "rows"
    record = gather._write(path, SIZE)
    held = torch.from_numpy(np.fromfile(path, np.uint8)[-SIZE:].copy()).view(-1, 512)
    tensors = held, torch.zeros((2_000, 512), dtype=torch.uint8)
    (warm,) = run_case(gather._warm(path, record, 2, tensors), rounds=1).rounds
    assert warm[gather.OURS].figures["pages asked for"] == 0
    (half,) = run_case(gather._half(path, record, tensors), rounds=1).rounds
    assert 0 < half[gather.OURS].figures["pages asked for"] < SIZE // 4096 * 0.6


def test_halving_leaves_every_second_stretch(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    array = gather._opened(path, gather._write(path, SIZE))
    gather._halve(array)
    held = resident_bytes(array.mapping.address, array.mapping.nbytes)
    assert SIZE // 2 <= held <= SIZE // 2 + (1 << 20)


def test_without_fio_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnavailableError, match="apt-get install fio"):
        fio.random_read_rate(tmp_path / "rows")


def test_fio_is_asked_for_reads_of_the_file_and_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Done:
        returncode, stderr = 0, ""
        stdout = '{"jobs": [{"read": {"iops": 1234.5}}]}'

    def run(argv: list[str], **_: Any) -> Done:
        asked.extend(argv)
        return Done()

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr("subprocess.run", run)
    assert fio.random_read_rate(tmp_path / "rows") == 1234.5
    assert f"--filename={tmp_path / 'rows'}" in asked
    assert {"--readonly", "--direct=1", "--iodepth=256", "--randrepeat=0"} <= set(asked)
    Done.returncode, Done.stderr = 1, "no such engine"
    with pytest.raises(UnavailableError, match="no such engine"):
        fio.random_read_rate(tmp_path / "rows")
