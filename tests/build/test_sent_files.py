"""A memory-mapped .npy file is named instead of sent, where it is certain to be the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.build.sending.outgoing import Outgoing
from overspill.build.sending.sent_files import npy_behind

ARRAY = np.arange(60_000).reshape(300, 200)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", ARRAY)
    return tmp_path / "a.npy"


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_whole_file_is_named(tmp_path: Path, mode: Any, order: Any) -> None:
    np.save(tmp_path / "b.npy", np.asarray(ARRAY, order=order))
    mapped = np.load(tmp_path / "b.npy", mmap_mode=mode)
    assert npy_behind(mapped) == str(tmp_path / "b.npy")
    assert npy_behind(mapped[:]) == str(tmp_path / "b.npy")
    streams = Outgoing()
    assert streams.add(mapped, what="node_features['x']") == str(tmp_path / "b.npy")
    assert streams.kinds == ()


def copied(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


OTHERS: dict[str, Callable[[np.memmap, Path], Any]] = {
    "a part": lambda mapped, path: mapped[:10],
    "a later part": lambda mapped, path: mapped[10:],
    "another shape": lambda mapped, path: mapped.reshape(200, 300),
    "another order": lambda mapped, path: mapped.T,
    "another type": lambda mapped, path: mapped.view(np.uint64),
    "backwards": lambda mapped, path: mapped[::-1],
    "a plain view": lambda mapped, path: np.asarray(mapped),
    "private": lambda mapped, path: np.load(path, mmap_mode="c"),
    "no .npy file": lambda mapped, path: np.memmap(path, np.int64, "r", 128, ARRAY.shape),
    "nothing": lambda mapped, path: mapped[:0],
}


@pytest.mark.parametrize("kind", OTHERS)
def test_anything_else_is_sent(saved: Path, kind: str) -> None:
    value = OTHERS[kind](np.load(saved, mmap_mode="r"), saved)
    if kind == "no .npy file":  # the same bytes, told in another way: it may be named
        assert npy_behind(value) == str(saved)
        saved.write_bytes(b"x" + saved.read_bytes()[1:])
    assert npy_behind(value) is None
    assert Outgoing().add(value, what="node_features['x']") == "stream:0"


@pytest.mark.parametrize("change", [Path.unlink, copied, lambda path: path.rename(f"{path}.old")])
def test_a_file_that_is_no_longer_there_is_sent(
    saved: Path, change: Callable[[Path], object]
) -> None:
    mapped = np.load(saved, mmap_mode="r")
    change(saved)
    assert npy_behind(mapped) is None
    assert np.array_equal(mapped, ARRAY)


def test_where_the_system_does_not_tell(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overspill.linux.mapped_files._MAPS", saved.with_name("absent"))
    assert npy_behind(np.load(saved, mmap_mode="r")) is None
    assert npy_behind(ARRAY) is None and npy_behind("a.npy") is None
