from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overspill.build.ids import text_runs
from overspill.build.ids.text_collector import MOST_STRING_BYTES, TextCollector
from overspill.build.ids.text_runs import TextRuns
from overspill.build.ids.text_sort import HashCollisionError, SortedStrings
from overspill.build.readers.edges import Strings
from overspill.errors import DiskRefusedError, InputError
from overspill.storage.texts import text_hashes
from texts import anything, as_strings, numbers, reference_hash


def paths(directory: Path) -> tuple[Path, Path, Path]:
    return directory / "hashes", directory / "lengths", directory / "data"


def good(strings: Strings) -> np.ndarray:
    return text_hashes(strings.offsets, strings.data, salt=0)


def collected(
    runs: TextRuns, pieces: list[list[str]], *, strings: int, nbytes: int, hash_of: object = good
) -> None:
    collector = TextCollector(runs, hash_of, most_strings=strings, most_bytes=nbytes)  # type: ignore[arg-type]
    for piece in pieces:
        collector.add(as_strings(piece, before="x"))
    collector.finish()


def as_dictionary(pieces: list[SortedStrings]) -> dict[int, str]:
    """Checks on the way that hashes rise, from piece to piece too."""
    found: dict[int, str] = {}
    for piece in pieces:
        at = 0
        for key, length in zip(piece.hashes.tolist(), piece.lengths.tolist(), strict=True):
            assert not found or key > max(found)
            found[key] = piece.data[at : at + length].tobytes().decode()
            at += length
    return found


def kept(piece: SortedStrings) -> SortedStrings:
    return SortedStrings(piece.hashes.copy(), piece.lengths.copy(), piece.data.copy())


@given(
    st.lists(anything, max_size=4),
    st.sampled_from([(1, 8), (4, 30), (7, 1000), (1000, 40)]),
    st.sampled_from([(1, 1), (9, 30), (1000, 1000)]),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_merging_equals_a_dictionary(
    tmp_path: Path, pieces: list[list[str]], buffer: tuple[int, int], windows: tuple[int, int]
) -> None:
    """With buffers and windows of every size, so that there are many runs, and groups of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_runs, "_SMALLEST_WINDOW", 2)
        patch.setattr(text_runs, "_SMALLEST_WINDOW_BYTES", 8)
        with TextRuns(paths(tmp_path)) as runs:
            collected(runs, pieces, strings=buffer[0], nbytes=buffer[1])
            found = as_dictionary([kept(piece) for piece in runs.merged(*windows)])
    expected = {reference_hash(t.encode(), 0): t for piece in pieces for t in piece}
    assert found == expected
    assert list(tmp_path.iterdir()) == []


def test_groups_of_runs_are_merged_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_runs, "_SMALLEST_WINDOW", 100)
    texts = numbers(3000)
    with TextRuns(paths(tmp_path)) as runs:
        collected(runs, [texts, texts[::-1]], strings=100, nbytes=100_000)
        assert runs.count == 6000
        sizes, pieces = [], []
        for piece in runs.merged(400, 10**6):  # four runs at a time
            sizes.append(len(piece.hashes))
            pieces.append(kept(piece))
        assert runs.count > 6000  # merged groups were appended
    assert set(as_dictionary(pieces).values()) == set(texts)
    assert max(sizes) <= 400


def test_three_pieces_are_valid_at_a_time(tmp_path: Path) -> None:
    with TextRuns(paths(tmp_path)) as runs:
        collected(runs, [numbers(1000)], strings=300, nbytes=100_000)
        alive: list[tuple[SortedStrings, SortedStrings]] = []
        for piece in runs.merged(64, 10_000):
            alive = [*alive, (piece, kept(piece))][-3:]
            for held, copied in alive:
                assert np.array_equal(held.data, copied.data)
                assert np.array_equal(held.hashes, copied.hashes)


def test_many_of_few_strings_stay_in_the_buffer(tmp_path: Path) -> None:
    with TextRuns(paths(tmp_path)) as runs:
        collected(runs, [["a", "bb", "ccc"] * 1000], strings=16, nbytes=64)
        assert runs.count == 3


@pytest.mark.parametrize("pieces", [[["a", "b"]], [["a"], ["b"]], [["a"] * 9, ["b"] * 9]])
def test_a_collision_is_found_within_a_run_and_between_runs(
    tmp_path: Path, pieces: list[list[str]]
) -> None:
    def bad(strings: Strings) -> np.ndarray:
        return np.zeros(len(strings), np.int64)

    with pytest.raises(HashCollisionError), TextRuns(paths(tmp_path)) as runs:
        collected(runs, pieces, strings=len(pieces[0]), nbytes=100, hash_of=bad)
        for _ in runs.merged(100, 100):
            pass
    assert list(tmp_path.iterdir()) == []


def test_strings_longer_than_the_buffers(tmp_path: Path) -> None:
    texts = ["a" * 5000, "b", "c" * 300, "", "a" * 5001, "a" * 5000, "d" * 299]
    with TextRuns(paths(tmp_path)) as runs:
        collected(runs, [texts], strings=3, nbytes=10)
        found = as_dictionary([kept(piece) for piece in runs.merged(2, 10)])
    assert set(found.values()) == set(texts)


def test_one_long_string_does_not_make_many_merges(tmp_path: Path) -> None:
    """Of 40 runs, one with a string as long as a third of the windows."""
    texts = numbers(1600)
    with TextRuns(paths(tmp_path)) as runs:
        collected(runs, [[*texts, "z" * 300_000]], strings=40, nbytes=1 << 20)
        before = runs.count
        found = as_dictionary([kept(piece) for piece in runs.merged(1 << 16, 1 << 20)])
        assert runs.count == before == len(found) == 1601
    with TextRuns(paths(tmp_path)) as runs:
        collected(runs, [["y" * 200_000, *texts, "z" * 300_000]], strings=40, nbytes=1 << 20)
        found = as_dictionary([kept(piece) for piece in runs.merged(1 << 16, 1 << 20)])
        assert runs.count > before and set(found.values()) == {*texts, "y" * 200_000, "z" * 300_000}


def test_runs_come_back_in_order_whatever_the_windows(tmp_path: Path) -> None:
    texts = numbers(200)
    with TextRuns(paths(tmp_path)) as runs:
        for n in range(0, 200, 50):
            part = [(reference_hash(t.encode(), 0), t) for t in texts[n : n + 50]]
            strings = as_strings([t for _, t in sorted(part)])
            lengths = np.diff(strings.offsets).astype(np.int32)
            runs.append(SortedStrings(np.array(sorted(part)[0:0]), lengths[:0], strings.data[:0]))
            hashes = np.array([h for h, _ in sorted(part)])
            runs.append(SortedStrings(hashes, lengths, strings.data))
        for most in ((1, 1), (7, 1000), (1000, 30)):
            pieces = [kept(piece) for piece in runs.in_order(*most)]
            assert np.concatenate([piece.data for piece in pieces]).tobytes().decode() == "".join(
                t
                for n in range(0, 200, 50)
                for _, t in sorted((reference_hash(t.encode(), 0), t) for t in texts[n : n + 50])
            )


def test_a_string_over_the_limit_is_refused_by_its_beginning(tmp_path: Path) -> None:
    with TextRuns(paths(tmp_path)) as runs:
        collector = TextCollector(runs, good, most_strings=10, most_bytes=10)
        collector.add(as_strings(["q" * MOST_STRING_BYTES]))
        with pytest.raises(InputError, match=r"1048577 bytes.*zzzz"):
            collector.add(as_strings(["short", "z" * (MOST_STRING_BYTES + 1)]))


def test_files_that_cannot_be_made_leave_none(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with (
        pytest.raises(DiskRefusedError, match=r"data cannot be made.*remedy: choose a directory"),
        TextRuns(paths(tmp_path)),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
