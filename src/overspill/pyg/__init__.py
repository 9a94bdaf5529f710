"""PyTorch Geometric: its loaders, sampler and stores over an Overspill dataset."""

from overspill.graph.reading.hot_rows import HotRows as HotRows
from overspill.pyg.link_neighbor_loader import LinkNeighborLoader as LinkNeighborLoader
from overspill.pyg.neighbor_loader import NeighborLoader as NeighborLoader
from overspill.pyg.neighbor_sampler import NeighborSampler as NeighborSampler
from overspill.pyg.stores import DatasetFeatureStore as DatasetFeatureStore
from overspill.pyg.stores import DatasetGraphStore as DatasetGraphStore

__all__ = [
    "DatasetFeatureStore",
    "DatasetGraphStore",
    "HotRows",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
]
