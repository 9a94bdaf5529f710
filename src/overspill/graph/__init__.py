"""The opened dataset: topology, sampler, feature gather; and the door to the build."""

from overspill.build.describe import Columns as Columns
from overspill.graph.construct import build_dataset as build_dataset
from overspill.graph.csr import CSR as CSR
from overspill.graph.csr import build_csr as build_csr
from overspill.graph.dataset import Dataset as Dataset
from overspill.graph.dataset import Topology as Topology
from overspill.graph.dataset import open_dataset as open_dataset
from overspill.graph.partition import Partitioned as Partitioned
from overspill.graph.partition import open_partition as open_partition
from overspill.graph.partition import partition_dataset as partition_dataset
from overspill.graph.partition_books import PartitionBook as PartitionBook
from overspill.graph.partition_books import RangePartitionBook as RangePartitionBook
from overspill.graph.partition_books import TensorPartitionBook as TensorPartitionBook
from overspill.graph.sampling.spec import SamplingSpec as SamplingSpec
from overspill.graph.text_ids import TextIds as TextIds

__all__ = [
    "CSR",
    "Columns",
    "Dataset",
    "PartitionBook",
    "Partitioned",
    "RangePartitionBook",
    "SamplingSpec",
    "TensorPartitionBook",
    "TextIds",
    "Topology",
    "build_csr",
    "build_dataset",
    "open_dataset",
    "open_partition",
    "partition_dataset",
]
