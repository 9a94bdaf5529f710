"""Edge lists in, dataset out, in a fixed amount of memory and in a process of its own."""

from __future__ import annotations

from overspill.build.child import run_build as run_build
from overspill.build.describe import Columns as Columns
from overspill.build.describe import describe_build as describe_build
from overspill.build.spec import BuildSpec as BuildSpec

__all__ = ["BuildSpec", "Columns", "describe_build", "run_build"]
