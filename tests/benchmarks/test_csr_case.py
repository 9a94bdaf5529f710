"""The CSR case runs at a tiny size, everybody arranges the same edges, and threads are put back."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import csr
from benchmarks.harness import figure, run_case
from benchmarks.peers import peer


@pytest.mark.parametrize("nbytes", [1, 256 << 10])
def test_csr(nbytes: int, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    with csr.opened(tmp_path, nbytes) as cases:
        assert torch.get_num_threads() == 1
        (result,) = (run_case(case, rounds=1) for case in cases)
    assert torch.get_num_threads() == threads
    names = set(result.rounds[0])
    assert {csr.OURS, csr.UNSORTED, csr.SORT, csr.LIMIT} <= names
    assert figure(result.rounds, of=csr.OURS, name=csr.PEAK).low >= 0
    against = {target.against for target in result.case.targets if hasattr(target, "against")}
    assert csr.SORT in against and (csr.SCIPY in against) == (csr.SCIPY in names)


def test_everybody_arranges_the_same(tmp_path: Path) -> None:
    with csr.opened(tmp_path, 64 << 10) as (case,):
        found = {one.name: one.act(None) for one in case.contenders if one.name != csr.LIMIT}
    ours = found[csr.UNSORTED]
    assert torch.equal(found[csr.SORT][0], ours.indptr)
    assert torch.equal(found[csr.SORT][1], ours.indices.long())
    rows = torch.repeat_interleave(ours.indptr.diff())
    if csr.PYG in found:
        indptr, indices, _order = found[csr.PYG]
        assert torch.equal(indptr, ours.indptr)
        # Its sort is not stable: the same columns in each row.
        assert torch.equal(
            (rows << 32 | indices).sort().values, (rows << 32 | ours.indices).sort().values
        )
    assert torch.equal(found[csr.OURS].indptr, ours.indptr)
    if csr.SCIPY in found:
        distinct = np.unique(np.stack([rows, ours.indices.numpy()]), axis=1)
        assert np.array_equal(found[csr.SCIPY].indices, distinct[1])


def test_without_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, *rest: Any) -> ModuleType:
        if name.startswith(("scipy", "torch_geometric")):
            raise ModuleNotFoundError(name, name=name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert peer("scipy.sparse") is None
    with csr.opened(tmp_path, 1 << 10) as (case,):
        assert case.absent == [csr.SCIPY, csr.PYG]
        assert {one.name for one in case.contenders} == {
            csr.OURS,
            csr.UNSORTED,
            csr.SORT,
            csr.LIMIT,
        }
