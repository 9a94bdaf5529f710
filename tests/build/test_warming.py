"""What the build's process holds before it plans: the same whether kernels were cached or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confined import PythonResult
from naive import read_built, require_naive
from overspill.build import describe_build, run_build

MIB = 1 << 20
EDGES = np.random.default_rng(8).integers(0, 1000, (2, 5000))


def write_edges(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / f"e.{kind}"
    if kind == "npy":
        np.save(path, EDGES)
    else:
        apart, head = (",", "src,dst\n") if kind == "csv" else ("\t", "")
        path.write_text(head + "".join(f"{s}{apart}{t}\n" for s, t in EDGES.T.tolist()))
    return path


def test_a_cold_kernel_cache_does_not_cost_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    edges, projected = write_edges(tmp_path, "csv"), []
    for name in ("cold", "warm"):
        events: list[dict[str, Any]] = []
        spec = describe_build(tmp_path / name, edges=edges, memory_limit="1GiB")
        summary = run_build(spec, on_event=events.append)
        assert [event["event"] for event in events].count("plan") == 1
        assert 0 < summary["peak_anon_bytes"] <= summary["projected_bytes"]
        projected.append(summary["projected_bytes"])
        require_naive(read_built(tmp_path / name), *EDGES, int(EDGES.max()) + 1)
    assert list((tmp_path / "kernels").rglob("*.nbc"))
    assert abs(projected[0] - projected[1]) < 4 * MIB


WARMED = """
import sys
from pathlib import Path
from naive import TINY
from overspill.build.construct import construct
from overspill.build.inputs import Inputs
from overspill.build.describe import describe_build
from overspill.build.warming import warm_kernels
from overspill.kernels import jit

spec = describe_build(sys.argv[1], edges=sys.argv[2], ids=sys.argv[3])
inputs = Inputs.open(spec)
warm_kernels(spec, inputs)
before = {kernel: len(kernel.signatures) for kernel in jit._kernels}
construct(spec, TINY, inputs=inputs, send=lambda _: None)
for kernel in jit._kernels:
    assert len(kernel.signatures) == before[kernel], (kernel, kernel.signatures)
"""


@pytest.mark.parametrize("ids", ["dense", "remap"])
@pytest.mark.parametrize("kind", ["npy", "csv", "txt"])
def test_nothing_is_compiled_once_the_plan_is_made(
    tmp_path: Path, run_python: Callable[..., PythonResult], kind: str, ids: str
) -> None:
    """TINY buffers put every mechanism to work, overfull ranges too."""
    arguments = [tmp_path / "out", write_edges(tmp_path, kind), ids]
    run_python(WARMED, arguments=arguments).check()
