"""Edge lists in, dataset out, in a fixed amount of memory and in a process of its own."""

from __future__ import annotations

from overspill.build.child import run_build as run_build
from overspill.build.spec import BuildSpec as BuildSpec
from overspill.build.spec import describe_build as describe_build

__all__ = ["BuildSpec", "describe_build", "run_build"]
