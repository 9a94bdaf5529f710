"""torch-sparse's neighbour sampler, built from its source the first time it is wanted.

It is on no index as a binary for the torch that is pinned here. The source comes by pip; of it only
the sampler is compiled, with the machine's own compiler and its -O3, into a directory beside the
environment's packages, so that neither this environment nor its pins change.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from overspill.errors import UnavailableError

VERSION = "0.6.18"
NAME = f"torch-sparse {VERSION}"
_REMEDY = "install a C++ compiler (apt-get install g++) and allow pip to reach its index"
_SOURCES = ("csrc/neighbor_sample.cpp", "csrc/cpu/neighbor_sample_cpu.cpp")
_INCLUDED = ("csrc", "third_party/parallel-hashmap")

Sample = Callable[..., Any]


def neighbor_sample() -> Sample:
    """Its sampler, built if need be: some two minutes of one core, once.

    Raises:
        UnavailableError: It cannot be had here; says why.
    """
    built = _home() / "neighbor_sample.so"
    if not built.exists():
        _build(built)
    torch.ops.load_library(str(built))  # type: ignore[no-untyped-call]
    sample: Sample = torch.ops.torch_sparse.neighbor_sample
    return sample


def _home() -> Path:
    return (
        Path(sys.prefix) / "benchmark-peers" / f"torch_sparse-{VERSION}-torch-{torch.__version__}"
    )


def _build(target: Path) -> None:
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise UnavailableError(f"{NAME} was not built: there is no {compiler}", remedy=_REMEDY)
    with tempfile.TemporaryDirectory(prefix="overspill-peer-") as made:
        source = _unpacked(Path(made))
        out = Path(made) / "built.so"
        included = [*(source / folder for folder in _INCLUDED), *_torch_includes()]
        argv = [compiler, "-O3", "-std=c++20", "-shared", "-fPIC", "-fopenmp", "-o", str(out)]
        argv += ["-DAT_PARALLEL_OPENMP", f"-D_GLIBCXX_USE_CXX11_ABI={int(_new_abi())}"]
        argv += [f"-I{folder}" for folder in included]
        argv += [str(source / name) for name in _SOURCES]
        argv += [f"-L{folder}" for folder in cpp_extension.library_paths()]
        argv += [f"-l{name}" for name in ("torch", "torch_cpu", "c10")]
        # Names of Python are found in the process that loads it.
        _run(argv, "compile")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(out, target)


def _unpacked(directory: Path) -> Path:
    argv = [sys.executable, "-m", "pip", "download", f"torch-sparse=={VERSION}", "--quiet"]
    argv += ["--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    _run([*argv, "--dest", str(directory)], "download")
    (archive,) = directory.glob("torch_sparse-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz")


def _torch_includes() -> Iterable[str]:
    return [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]


def _new_abi() -> bool:
    return bool(torch.compiled_with_cxx11_abi())


def _run(argv: list[str], what: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise UnavailableError(f"{NAME} was not built: cannot {what}: {tail}", remedy=_REMEDY)


if __name__ == "__main__":
    try:
        neighbor_sample()
    except UnavailableError as error:
        # Without it, the table says so.
        print(error)
