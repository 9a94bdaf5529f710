"""Cora in parts on the machines of a Ray cluster, and a model that they train together.

python examples/train_on_ray.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import overspill as ov
from overspill import cluster
from overspill.pyg import NeighborLoader


def train(config: dict) -> list[float]:
    graph, seeds, rank = config["graph"], config["seeds"], torch.distributed.get_rank()
    mine = seeds[cluster.places_of_rank(graph, seeds)]  # mostly of its machine, as many as others
    loader = NeighborLoader(graph, [15, 10], mine, batch_size=128, shuffle=True, seed=rank)
    torch.manual_seed(0)
    model = prepare_model(GraphSAGE(1433, 64, num_layers=2, out_channels=7, dropout=0.5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = torch.zeros(5)
    for epoch in range(len(losses)):
        for batch in loader:
            optimizer.zero_grad()
            scores = model(batch.x.float(), batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(scores, batch.y[: batch.batch_size])
            loss.backward()  # averages the gradients of all ranks
            optimizer.step()
            losses[epoch] += loss.detach() / len(loader)
    torch.distributed.all_reduce(losses)
    return (losses / torch.distributed.get_world_size()).tolist()


def main(directory: str, runs: RunConfig) -> None:
    ray.init()
    cora = Path(ov.__file__).parent / "cli" / "demo" / "cora"
    arrays = {"x": cora / "features.npy", "y": cora / "labels.npy"}
    if not Path(directory).exists():
        cluster.build(edges=cora / "edges.csv", node_features=arrays, num_parts=2, out=directory)
    with cluster.open_dataset(directory) as graph:
        config = {"graph": graph, "seeds": torch.arange(0, graph.num_nodes, 2)}
        spread = ScalingConfig(num_workers=2, placement_strategy="SPREAD")
        run = TorchTrainer(train, train_loop_config=config, scaling_config=spread, run_config=runs)
        print("loss", *(f"{loss:.2f}" for loss in run.fit().return_value))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{place}/cora", RunConfig(storage_path=place))
