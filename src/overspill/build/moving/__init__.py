"""Rows moved out of core: to positions, by an index, along a permutation."""
