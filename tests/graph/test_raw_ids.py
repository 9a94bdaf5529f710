"""Nodes by the ids that people know them by, and back."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import overspill as ov
from overspill.errors import InputError
from overspill.graph import raw_ids as raw_ids_module
from overspill.graph import text_ids as text_ids_module
from overspill.graph.dataset import open_dataset
from overspill.graph.text_ids import TextIds
from overspill.storage import texts as texts_module
from small_graphs import write_graph, write_nodes
from spilling import spill_dir, spill_files
from texts import TRICKY, anything, numbers

__all__ = ["spill_dir"]

INTEGERS = [-(2**63), -7, 0, 3, 2**40, 2**63 - 1]


def shuffled(count: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(count).permutation(count).astype(dtype)


@pytest.mark.parametrize("dtype", [None, "int32", "int64"])
@pytest.mark.parametrize("raw", [INTEGERS, TRICKY], ids=["integers", "text"])
def test_raw_ids_are_listed_and_found(tmp_path: Path, raw: list[Any], dtype: str | None) -> None:
    """Renumbered or not."""
    order = None if dtype is None else shuffled(len(raw), dtype)
    listed = write_nodes(tmp_path, raw, salt=3 if raw is TRICKY else 0, order=order)
    ds = open_dataset(tmp_path)
    ids = ds.node_ids()
    assert (list(ids) if raw is TRICKY else ids.tolist()) == listed
    assert ds.lookup(listed).tolist() == list(range(len(raw)))
    asked = [listed[4], listed[0], listed[4]]
    assert ds.lookup(asked, "node").tolist() == [4, 0, 4]
    assert ds.lookup(asked).dtype == torch.int64
    assert ds.lookup([]).tolist() == []


@given(anything, st.lists(st.text(max_size=3)))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_text_ids_equal_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], others: list[str]
) -> None:
    distinct = list({*texts, "one"})
    path = tmp_path_factory.mktemp("data")
    known = {text: node for node, text in enumerate(write_nodes(path, distinct))}
    ds = open_dataset(path)
    assert list(ds.node_ids()) == list(known)
    for text in others:
        if text in known:
            assert ds.lookup([text]).tolist() == [known[text]]
        else:
            with pytest.raises(InputError, match="belong to no node"):
                ds.lookup([text])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_dense_nodes_that_were_renumbered(tmp_path: Path, dtype: str) -> None:
    order = shuffled(10, dtype)
    write_nodes(tmp_path, list(range(10)), order=order)
    ds = open_dataset(tmp_path)
    ids = ds.node_ids()
    assert isinstance(ids, torch.Tensor) and ids.dtype == torch.int64
    assert ids.tolist() == order.tolist()
    assert ds.lookup(order).tolist() == list(range(10))
    with pytest.raises(InputError, match="10"):
        ds.lookup([10])


def test_renumbered_ids_are_put_together_in_windows_and_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spill_dir: Path
) -> None:
    monkeypatch.setattr(raw_ids_module, "_WINDOW", 7)
    raw = [5 * n - 40 for n in range(100)]
    listed = write_nodes(tmp_path / "data", raw, order=shuffled(100, "int32"))
    ids = open_dataset(tmp_path / "data").node_ids()
    assert ids.tolist() == listed and ov.is_disk_backed(ids)
    assert len(spill_files(spill_dir)) == 1


def test_a_sequence_of_texts(tmp_path: Path) -> None:
    listed = write_nodes(tmp_path, numbers(50), order=shuffled(50, "int32"))
    ids = open_dataset(tmp_path).node_ids()
    assert isinstance(ids, TextIds) and len(ids) == 50 and repr(ids) == "TextIds(50 ids)"
    assert ids[3] == ids[np.int64(3)] == ids[torch.tensor(3)] == listed[3]
    assert ids[-1] == listed[-1] and ids[-50] == listed[0]
    assert ids[10:40:3] == listed[10:40:3] and ids[5:5] == [] and ids[::-1] == listed[::-1]
    assert ids[[7, 2, 7]] == ids[np.array([7, 2, 7])] == [listed[7], listed[2], listed[7]]
    assert ids[torch.tensor([0])] == [listed[0]]
    assert listed[9] in ids and "nobody" not in ids
    with pytest.raises(IndexError):
        ids[50]
    with pytest.raises(InputError, match="50"):
        ids[[1, 50]]
    with pytest.raises(InputError):
        ids[["a"]]


@pytest.mark.parametrize(("strings", "nbytes"), [(4, 10**6), (4096, 40), (1, 1)])
def test_texts_are_listed_in_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strings: int, nbytes: int
) -> None:
    monkeypatch.setattr(text_ids_module, "_WINDOW", strings)
    monkeypatch.setattr(text_ids_module, "_WINDOW_BYTES", nbytes)
    listed = write_nodes(tmp_path, [*TRICKY, *numbers(60), "x" * 500])
    assert list(open_dataset(tmp_path).node_ids()) == listed


def test_windows_hold_bounded_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_ids_module, "_WINDOW_BYTES", 1000)
    listed = write_nodes(tmp_path, [f"{n}" * 100 for n in range(100, 140)])
    read, taken = texts_module.StoredTexts.read, []

    def watched(self: Any, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        taken.append(int(lengths.sum()))
        return read(self, starts, lengths)

    monkeypatch.setattr(texts_module.StoredTexts, "read", watched)
    assert list(open_dataset(tmp_path).node_ids()) == listed
    assert max(taken) <= 1000 and sum(taken) == 40 * 300


@pytest.mark.parametrize(
    ("raw", "asked", "told"),
    [
        (INTEGERS, ["3"], "are integers, not text"),
        (INTEGERS, [3, 4, 5], r"2 of 3 .*first is 4 at position 1"),
        (INTEGERS, [3.0], "whole numbers"),
        (TRICKY, [7], "are text, not list"),
        (TRICKY, torch.tensor([7]), "are text, not Tensor of torch.int64"),
        (TRICKY, ["7", "07", "0007"], r"2 of 3 .*first is '07' at position 1"),
        (TRICKY, ["7\0\0"], r"'7\\x00\\x00'"),
        (TRICKY, ["\ud800"], "surrogate"),
        (TRICKY, "7", "one string"),
    ],
)
def test_ids_that_are_unknown_or_of_the_other_kind(
    tmp_path: Path, raw: list[Any], asked: Any, told: str
) -> None:
    write_nodes(tmp_path, raw)
    with pytest.raises(InputError, match=told):
        open_dataset(tmp_path).lookup(asked)


def test_text_is_refused_where_ids_are_dense(tmp_path: Path) -> None:
    write_graph(tmp_path, np.zeros(5, np.int64), np.zeros(0, np.int32))
    with pytest.raises(InputError, match="are integers"):
        open_dataset(tmp_path).lookup(["1"])


def test_an_unknown_string_that_shares_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [listed] = write_nodes(tmp_path, ["same"])
    ds = open_dataset(tmp_path)
    [held] = ds._mapped(ds.manifest.node_types["node"].ids).tolist()
    monkeypatch.setattr(
        raw_ids_module, "text_hashes", lambda offsets, data, salt: np.full(len(offsets) - 1, held)
    )
    assert ds.lookup([listed, "same"]).tolist() == [0, 0]
    for other in ("else", "sam", ""):
        with pytest.raises(InputError, match="1 of 2"):
            ds.lookup(["same", other])


def test_a_dataset_with_texts_pickles_by_path(tmp_path: Path) -> None:
    listed = write_nodes(tmp_path, TRICKY, order=shuffled(len(TRICKY), "int32"))
    ds = open_dataset(tmp_path)
    ds.lookup(listed), list(ds.node_ids())
    sent = pickle.dumps(ds)
    assert len(sent) < 600
    assert list(pickle.loads(sent).node_ids()) == listed
