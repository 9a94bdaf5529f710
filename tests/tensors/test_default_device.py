"""A default device elsewhere, as training scripts set it, changes nothing for mapped tensors."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch

import overspill as ov
from overspill.graph.dataset import open_dataset
from overspill.pyg import NeighborLoader
from small_graphs import random_graph


@pytest.mark.parametrize("source", [torch.ones(64), torch.ones(8, 8).T, torch.ones(()).expand(9)])
def test_spilling_and_receiving(spill_dir: Path, source: torch.Tensor) -> None:
    with torch.device("meta"):
        spilled = ov.spill_tensor_to_disk(source, required=True)
        handle = ov.handle(spilled)
        opened = handle.open()
        received = pickle.loads(bytes(ForkingPickler.dumps(spilled)))
        allocated = ov.allocate_disk_backed((3, 4), torch.int8, required=True)
        preshared = ov.allocate_preshared((3, 4), torch.int8)
        (joined,) = ov.concatenate_chunks([(source,), (source,)]) if source.dim() else (source,)
        sent = ov.share_memory_for_ipc({"x": source})["x"]
    for tensor in (spilled, opened, received, allocated, preshared, joined, sent):
        assert tensor is not None and tensor.device.type == "cpu"
    assert torch.equal(spilled, source) and torch.equal(received, source)


def test_a_graph(tmp_path: Path) -> None:
    random_graph(tmp_path)
    with torch.device("meta"):
        dataset = open_dataset(tmp_path)
        assert dataset.node_ids().device.type == "cpu"
        loader = NeighborLoader(dataset, [2], batch_size=9, input_nodes=[1, 2, 3])
        book = ov.RangePartitionBook([3, 5])
    (batch,) = loader
    assert batch.n_id[:3].tolist() == [1, 2, 3]
    assert np.asarray(book[torch.tensor([0, 4])]).tolist() == [0, 1]
