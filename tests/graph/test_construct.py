from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import overspill as ov
from naive import naive_csc
from overspill.errors import FormatError, InputError

DATA = Path(__file__).resolve().parents[1] / "data"


def test_a_graph_with_features_opens_as_built(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edges = np.random.default_rng(3).integers(0, 50, (2, 400))
    x = np.random.default_rng(4).random((60, 5), np.float32)
    np.save(tmp_path / "e.npy", edges)
    np.save(tmp_path / "x.npy", x)
    ds = ov.build_dataset(
        tmp_path / "out",
        edges=tmp_path / "e.npy",
        node_features={"x": tmp_path / "x.npy"},
        memory_limit="1GiB",
    )
    indptr, indices = naive_csc(*edges, 60)
    assert torch.equal(ds.topology().indptr, torch.from_numpy(indptr))
    assert torch.equal(ds.topology().indices.long(), torch.from_numpy(indices))
    assert torch.equal(ds.features("x"), torch.from_numpy(x))
    assert capfd.readouterr() == ("", "")


def test_progress_goes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n")
    ov.build_dataset(tmp_path / "out", edges=tmp_path / "e.csv", progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "partition" in err and "build rows" in err


def test_the_as_graph_keeps_its_raw_ids(tmp_path: Path) -> None:
    ds = ov.build_dataset(tmp_path / "out", edges=DATA / "as20graph.txt")
    assert (ds.num_nodes, ds.num_edges) == (6474, 26467)
    ids = ds.node_ids()
    assert ids[0] == 1 and ids[-1] == 65105 and bool((ids[1:] > ids[:-1]).all())


def test_a_refused_build_leaves_nothing_to_open(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n1,-4\n")
    with pytest.raises(InputError) as caught:
        ov.build_dataset(tmp_path / "out", edges=tmp_path / "e.csv", progress=True)
    assert (caught.value.row, caught.value.column, caught.value.value) == (2, "dst", "-4")
    with pytest.raises(FormatError):
        ov.open_dataset(tmp_path / "out")


def test_an_unknown_option_is_told_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no option 'nodes'.*num_nodes"):
        ov.build_dataset(tmp_path / "out", edges="e.csv", nodes=5)  # type: ignore[call-arg]
