"""Sampling of neighbourhoods from a dataset's topology."""

from overspill.graph.sampling.sampled import SampledNeighborhood as SampledNeighborhood
from overspill.graph.sampling.sampler import NeighborSampler as NeighborSampler
from overspill.graph.sampling.spec import SampleLimit as SampleLimit
from overspill.graph.sampling.spec import SamplingSpec as SamplingSpec
from overspill.graph.sampling.spec import check_fan_outs as check_fan_outs
from overspill.graph.sampling.spec import fan_outs_for as fan_outs_for
