"""The opened dataset: topology, sampler, feature gather; and the door to the build."""

from overspill.graph.construct import build_dataset as build_dataset
from overspill.graph.dataset import Dataset as Dataset
from overspill.graph.dataset import Topology as Topology
from overspill.graph.dataset import open_dataset as open_dataset

__all__ = ["Dataset", "Topology", "build_dataset", "open_dataset"]
