"""Strings to nodes: stored once each, found again, with hashes that fail now and then."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from confined import PythonResult, make_cold
from overspill.build.directory import BuildDirectory
from overspill.build.ids import text_ids, text_runs
from overspill.build.ids.text_ids import TextIdRecords, TextTranslator, store_distinct_strings
from overspill.build.plan import BuildPlan
from overspill.build.readers.edges import Strings
from overspill.errors import DiskRefusedError, FormatError, InputError
from overspill.linux.blocks import refused
from overspill.storage import write_behind
from overspill.storage.arrays import map_array
from overspill.storage.texts import text_hashes
from texts import TRICKY, anything, as_strings, numbers

TINY = BuildPlan(8, 2, 64, 2, 512, 16, 64)  # runs of 8 strings


class Undone(Exception):
    """Leaves the build's directory, which removes what was made."""


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_runs, "_SMALLEST_WINDOW", 2)
    monkeypatch.setattr(text_runs, "_SMALLEST_WINDOW_BYTES", 8)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[BuildDirectory]:
    with pytest.raises(Undone), BuildDirectory(tmp_path / "out") as made:
        yield made
        raise Undone
    assert list(tmp_path.iterdir()) == []


def store(directory: BuildDirectory, *pieces: list[str], prefix: str = "n") -> TextIdRecords:
    records = store_distinct_strings(
        lambda: iter(map(as_strings, pieces)), directory, prefix=prefix, plan=TINY
    )
    assert list((directory.path / "scratch").iterdir()) == []
    return records


def stored_texts(directory: BuildDirectory, records: TextIdRecords) -> list[str]:
    """What the three files hold, checked against each other."""
    hashes, offsets, data = (
        np.array(map_array(directory.path / record.path, record)[1])
        for record in (records.hashes, records.offsets, records.data)
    )
    assert (hashes[1:] > hashes[:-1]).all() and offsets[0] == 0 and offsets[-1] == len(data)
    assert text_hashes(offsets, data, salt=records.salt).tolist() == hashes.tolist()
    return [data[a:b].tobytes().decode() for a, b in pairwise(offsets)]


def test_distinct_strings_are_stored_in_the_order_of_their_hashes(
    directory: BuildDirectory,
) -> None:
    pieces = [TRICKY, numbers(400), [], TRICKY[::-1], numbers(30), ["z" * 3000]]
    records = store(directory, *pieces)
    texts = stored_texts(directory, records)
    assert sorted(texts) == sorted({text for piece in pieces for text in piece})
    assert records.salt == 0 and records.hashes.shape == (len(texts),)
    assert [record.path for record in (records.hashes, records.offsets, records.data)] == [
        "n/ids.safetensors",
        "n/id_offsets.safetensors",
        "n/id_text.safetensors",
    ]


@given(st.lists(anything, max_size=3), anything)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_translating_equals_a_dictionary(
    tmp_path: Path, pieces: list[list[str]], others: list[str]
) -> None:
    with pytest.raises(Undone), BuildDirectory(tmp_path / "out") as directory:
        records = store(directory, *pieces)
        ranks = {text: place for place, text in enumerate(stored_texts(directory, records))}
        assert set(ranks) == {text for piece in pieces for text in piece}
        translator = TextTranslator(directory.path, records)
        for piece in pieces:
            expected = [ranks[text] for text in piece]
            assert translator.translate(as_strings(piece, before="é")).tolist() == expected
        asked = others + [text for piece in pieces for text in piece]
        expected = [ranks.get(text, -1) for text in asked]
        assert translator.find(as_strings(asked, before="é")).tolist() == expected
        del translator
        raise Undone


def test_no_strings_at_all(directory: BuildDirectory) -> None:
    records = store(directory)
    assert stored_texts(directory, records) == []
    translator = TextTranslator(directory.path, records)
    assert translator.find(as_strings(["a", ""])).tolist() == [-1, -1]
    assert translator.translate(as_strings([])).tolist() == []
    del translator


def test_a_string_that_the_first_reading_did_not_show(directory: BuildDirectory) -> None:
    translator = TextTranslator(directory.path, store(directory, ["a", "b"]))
    with pytest.raises(FormatError, match="first reading"):
        translator.translate(as_strings(["a", "c"]))
    del translator


def test_cold_files_are_read_as_warm_ones(directory: BuildDirectory) -> None:
    texts = numbers(1000)
    records = store(directory, texts)
    ranks = {text: place for place, text in enumerate(stored_texts(directory, records))}
    for record in (records.hashes, records.offsets, records.data):
        make_cold(directory.path / record.path)
    translator = TextTranslator(directory.path, records)
    asked = [*texts[::7], *TRICKY]
    assert translator.find(as_strings(asked)).tolist() == [ranks.get(text, -1) for text in asked]
    del translator


def weak_under(salts: range, most: int) -> Callable[..., np.ndarray]:
    """A hash that has few values under some keys."""

    def hashes(offsets: np.ndarray, data: np.ndarray, *, salt: int) -> np.ndarray:
        found = text_hashes(offsets, data, salt=salt)
        return found % most if salt in salts else found

    return hashes


@pytest.mark.parametrize("most", [1, 200, 2**13])
def test_strings_that_collide_are_hashed_again(
    directory: BuildDirectory, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Within a run, between runs, and after some runs have been merged."""
    monkeypatch.setattr(text_ids, "text_hashes", weak_under(range(2), most))
    texts, closed = numbers(600), []

    def pieces() -> Iterator[Strings]:
        try:
            for at in range(0, 600, 50):
                yield as_strings(texts[at : at + 50])
        finally:
            closed.append(True)

    records = store_distinct_strings(pieces, directory, prefix="n", plan=TINY)
    assert records.salt == 2 and len(closed) == 3
    assert sorted(stored_texts(directory, records)) == sorted(texts)
    translator = TextTranslator(directory.path, records)
    assert sorted(translator.translate(as_strings(texts)).tolist()) == list(range(600))
    del translator


def test_hashes_that_never_differ_end_the_build(
    directory: BuildDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_ids, "text_hashes", weak_under(range(1000), 1))
    with pytest.raises(FormatError, match="8 keys"):
        store(directory, ["a", "b"])
    assert store(directory, ["a", "a"]).hashes.shape == (1,)


def test_an_unknown_string_may_share_a_hash(
    directory: BuildDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_ids, "text_hashes", weak_under(range(1000), 1))
    translator = TextTranslator(directory.path, store(directory, ["same"]))
    found = translator.find(as_strings(["same", "else", "other", "same", ""]))
    assert found.tolist() == [0, -1, -1, 0, -1]
    del translator


@pytest.mark.parametrize("write", range(0, 60, 7))
def test_a_disk_that_refuses_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    """At a write of a run, of the merge, or of the result."""
    done = 0

    def write_all(fd: int, data: Any, offset: int, *, path: str) -> None:
        nonlocal done
        done += 1
        if done > write:
            raise refused(OSError(errno.ENOSPC, "full"), "cannot write", fd, path, len(data))
        real(fd, data, offset, path=path)

    real = write_behind.write_all
    monkeypatch.setattr(write_behind, "write_all", write_all)
    with (
        pytest.raises(DiskRefusedError, match="out"),
        BuildDirectory(tmp_path / "out") as directory,
    ):
        store(directory, numbers(100))
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_reader_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[Strings]:
        yield as_strings(numbers(50))
        raise InputError("row 51 is damaged")

    with (
        pytest.raises(InputError, match="row 51"),
        BuildDirectory(tmp_path / "out") as directory,
    ):
        store_distinct_strings(pieces, directory, prefix="n", plan=TINY)
    assert list(tmp_path.iterdir()) == []


def test_the_same_input_gives_the_same_bytes(directory: BuildDirectory) -> None:
    one = store(directory, numbers(100), TRICKY, prefix="a")
    other = store(directory, TRICKY, numbers(100)[::-1], numbers(9), prefix="b")
    assert [one.hashes.sha256, one.offsets.sha256, one.data.sha256] == [
        other.hashes.sha256,
        other.offsets.sha256,
        other.data.sha256,
    ]


MEMORY = """
import json, sys
import numpy as np
from overspill.build.directory import BuildDirectory
from overspill.build.plan import BuildPlan
from overspill.build.readers.edges import Strings
from overspill.build.ids.text_ids import store_distinct_strings
from overspill.linux.peaks import PeakSampler
from overspill.linux.processes import process_memory

out, run_ids = sys.argv[1], int(sys.argv[2])
plan = BuildPlan(8, 2, 64, 2, 512, run_ids, 64)
offsets = np.arange(0, 16 * 10_001, 16)

def pieces(count):
    for first in range(0, count, 10_000):
        numbers = np.arange(first, first + 10_000)
        yield Strings(offsets, np.stack([numbers, numbers // 3], axis=1).view(np.uint8).reshape(-1))

class Undone(Exception):
    pass

def peak(count):
    before = process_memory().anon_bytes
    try:
        with BuildDirectory(out) as directory, PeakSampler(children=False, interval_s=0.003) as at:
            records = store_distinct_strings(
                lambda: pieces(count), directory, prefix="n", plan=plan
            )
            assert records.hashes.shape == (count,)
            raise Undone
    except Undone:
        return at.peaks.anon_bytes - before

peak(10_000)  # loads the kernels
print(json.dumps([peak(200_000), peak(700_000)]))
"""


@pytest.mark.memory
def test_memory_is_as_planned_whatever_the_number_of_strings(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    run_ids = 1 << 18
    result = run_python(MEMORY, arguments=[tmp_path / "out", run_ids], fresh=True).check()
    few, many = json.loads(result.stdout)
    # A piece takes 1 MiB beside it, as it is made here.
    assert max(few, many) <= 40 * run_ids + (1 << 20)
    assert many <= few + (2 << 20)
