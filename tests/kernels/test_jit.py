from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core import config
from numba.core.caching import IndexDataCacheFile

from overspill.kernels import jit
from overspill.linux.cache_directory import private_cache_directory


def total(values: np.ndarray) -> int:
    found = 0
    for value in values:
        found += value
    return found


def test_a_kernel_computes() -> None:
    assert jit.kernel(total)(np.arange(5)) == 10


def refuse_cache(monkeypatch: pytest.MonkeyPatch, *, also_in: str | None) -> list[bool]:
    """Make numba behave as where it finds no directory, except perhaps in a chosen one."""
    real, asked = numba.njit, []

    def njit(*args: object, **options: bool) -> object:
        asked.append(options.get("cache", False))
        if options.get("cache") and also_in != config.CACHE_DIR:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", njit)
    return asked


def test_without_a_place_to_cache_it_uses_a_private_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = private_cache_directory(tmp_path)
    assert private is not None
    monkeypatch.setattr(jit, "private_cache_directory", lambda: private)
    asked = refuse_cache(monkeypatch, also_in=str(private))
    before = config.CACHE_DIR
    assert jit.kernel(total)(np.arange(5)) == 10
    assert asked == [True, True] and before == config.CACHE_DIR
    assert list(private.rglob("*.nbi"))


@pytest.mark.parametrize("place", ["cache", "nowhere"])
def test_it_tells_whether_the_next_process_is_spared_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(jit, "_kernels", [])
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    if place == "nowhere":
        monkeypatch.setattr(jit, "private_cache_directory", lambda: None)
        refuse_cache(monkeypatch, also_in=None)
    for told in (place == "cache", False):
        compiled = jit.kernel(total)
        assert not jit.compiled_into_cache()
        compiled(np.arange(5))
        assert jit.compiled_into_cache() is told
        jit._kernels.clear()


def test_two_processes_that_compile_at_once_do_not_swap_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look before either has told what it has, and the code of one of them arrives last."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    late, write = [], IndexDataCacheFile._save_data
    with monkeypatch.context() as together:
        together.setattr(IndexDataCacheFile, "_load_index", lambda files: {})
        with monkeypatch.context() as slow:
            slow.setattr(
                IndexDataCacheFile, "_save_data", lambda *a: late.append(partial(write, *a))
            )
            assert jit.kernel(total)(np.arange(5)) == 10
        assert jit.kernel(total)(np.arange(5) / 2) == 5.0
    for one in late:
        one()
    found = jit.kernel(total)
    assert found(np.arange(5) / 2) == 5.0 and found(np.arange(5)) == 10
    assert sum(found.stats.cache_hits.values()) >= 1, "nothing came from the cache"


def test_without_any_place_it_compiles_uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "private_cache_directory", lambda: None)
    asked = refuse_cache(monkeypatch, also_in=None)
    assert jit.kernel(total)(np.arange(5)) == 10
    assert asked == [True, False]


def test_importing_never_fails_without_a_home(tmp_path: Path) -> None:
    script = "import overspill.kernels.jit as j; print(j.kernel(lambda x: x + 1)(1))"
    environment = {"HOME": "/nonexistent", "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert result.stdout.strip() == "2", result.stderr


def test_kernels_load_without_linear_algebra_where_told_so() -> None:
    pytest.importorskip("scipy")
    script = (
        "import sys\n"
        "from overspill.kernels.jit import leave_out_linear_algebra\n"
        "from overspill.kernels.gather import first_outside\n"
        "import numpy as np\n"
        "if sys.argv[1:]: leave_out_linear_algebra()\n"
        "print(first_outside(np.zeros(1, np.int64), 1)[0], bool(sys.modules.get('scipy.linalg')))\n"
    )
    said = [
        subprocess.run([sys.executable, "-c", script, *more], capture_output=True, text=True).stdout
        for more in ([], ["leave"])
    ]
    assert said == ["0 True\n", "0 False\n"]
