"""PyTorch Geometric: its loaders and stores over an Overspill dataset."""

from overspill.pyg.neighbor_loader import NeighborLoader as NeighborLoader

__all__ = ["NeighborLoader"]
