from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from confined import make_cold
from overspill.errors import FormatError, StaleFileError
from overspill.linux.cache import cached_bytes
from overspill.storage import texts as texts_module
from overspill.storage.texts import StoredTexts, joined, split, text_hashes
from small_graphs import write_array
from texts import TRICKY, as_strings, numbers


def stored(
    directory: Path, texts: list[str], *, probed: bool = True, offsets: np.ndarray | None = None
) -> StoredTexts:
    strings = as_strings(texts)
    files = {
        "offsets": write_array(
            directory / "offsets", strings.offsets if offsets is None else offsets
        ),
        "data": write_array(directory / "data", strings.data),
    }
    make_cold(directory / "offsets", directory / "data")
    return StoredTexts(directory, files, probed=probed)


@pytest.mark.parametrize("probed", [True, False])
@pytest.mark.parametrize("block", [3, 4096])
def test_strings_are_read_in_any_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probed: bool, block: int
) -> None:
    monkeypatch.setattr(texts_module, "_BLOCK_STRINGS", block)
    monkeypatch.setattr(texts_module, "_BLOCK_BYTES", 50)
    texts = [*TRICKY, *numbers(2000), "y" * 9000]
    held = stored(tmp_path, texts, probed=probed)
    places = np.random.default_rng(1).integers(0, len(texts), 300)
    places[:3] = len(texts) - 1, 0, len(texts) - 1
    starts, lengths = held.spans(places)
    assert split(lengths, held.read(starts, lengths)) == [texts[place] for place in places]
    assert split(*[array[:0] for array in (lengths, held.read(starts[:0], lengths[:0]))]) == []


@pytest.mark.parametrize("block", [3, 4096])
def test_strings_are_compared_with_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(texts_module, "_BLOCK_STRINGS", block)
    texts = [*TRICKY, *numbers(500)]
    held = stored(tmp_path, texts)
    rng = np.random.default_rng(2)
    places = rng.integers(0, len(texts), 400)
    others = [texts[place] if rng.random() < 0.5 else texts[place][::-1] for place in places]
    others[0] += "!"
    strings = as_strings(others, before="some")
    spans = strings.offsets[:-1], np.diff(strings.offsets)
    expected = [texts[place] == other for place, other in zip(places, others, strict=True)]
    assert held.equal(places, spans, strings.data).tolist() == expected
    assert 50 < sum(expected) < 399


@pytest.mark.requires("mincore")
def test_a_few_strings_cost_a_few_pages(tmp_path: Path) -> None:
    """Of 600 pages of offsets, and 900 of bytes."""
    texts = numbers(300_000)
    held = stored(tmp_path, texts)
    places = np.array([299_999, 7, 123_456])
    starts, lengths = held.spans(places)
    assert split(lengths, held.read(starts, lengths)) == [texts[place] for place in places]
    for name in ("offsets", "data"):
        # Reading the header may read ahead a little.
        assert cached_bytes(tmp_path / name) <= 3 * 2 * 4096 + (256 << 10)


@pytest.mark.parametrize("offsets", [[0, 2, 1], [-1, 1, 2], [0, 1, 4]])
def test_damaged_offsets_are_not_followed(tmp_path: Path, offsets: list[int]) -> None:
    held = stored(tmp_path, ["ab", "c"], offsets=np.array(offsets))
    with pytest.raises(FormatError, match="offsets"):
        held.spans(np.array([0, 1]))


@pytest.mark.parametrize("name", ["offsets", "data"])
def test_a_file_that_was_cut_or_removed_is_stale(tmp_path: Path, name: str) -> None:
    held = stored(tmp_path, ["ab", "c"])
    os.truncate(tmp_path / name, 4096)
    with pytest.raises(StaleFileError):
        held.spans(np.array([0]))
    (tmp_path / name).unlink()
    with pytest.raises(StaleFileError):
        held.spans(np.array([0]))


def test_python_strings_there_and_back() -> None:
    broken = b"\xff\xfe".decode("utf-8", "surrogateescape")  # as a file that is no UTF-8 has it
    offsets, data = joined([*TRICKY, broken])
    assert split(np.diff(offsets), data) == [*TRICKY, broken]
    assert data[-2:].tolist() == [0xFF, 0xFE]
    with pytest.raises(UnicodeEncodeError):
        joined(["\ud800"])


def test_the_salt_decides_the_hash() -> None:
    offsets, data = joined(TRICKY)
    found = [text_hashes(offsets, data, salt=salt).tolist() for salt in (0, 1, 1)]
    assert found[1] == found[2] and not set(found[0]) & set(found[1])
