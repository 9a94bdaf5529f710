"""How kernels are compiled: without the GIL, cached where a cache can be kept, never failing.

A first compilation costs seconds and a cached one a fraction of a second, so the cache matters; but
no place to keep one (a read-only installation, no home directory) must never stop an import.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import config
from numba.core.caching import IndexDataCacheFile

from overspill.linux.cache_directory import private_cache_directory

_log = logging.getLogger("overspill")
_kernels: list[Any] = []
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _CodeFiles(IndexDataCacheFile):
    """A function's files in the cache: compiled code is named by what it is.

    numba numbers it by what its index holds. Of two processes that compile at once, for other types
    each, both would take the same number, and the index then give one's code for the other's types.
    Here the worst is that one of them is not in the index, and is compiled again.
    """

    def save(self, key: object, data: object) -> None:
        told = repr((key, self._source_stamp)).encode()
        number = int.from_bytes(hashlib.sha256(told).digest()[:7], "big")
        name = self._data_name(number)
        self._save_data(name, data)
        known = self._load_index()
        if known.get(key) != name:
            self._save_index({**known, key: name})


def kernel(function: _Function) -> _Function:
    """Compile a plain loop on its first call: nopython, nogil, cached if at all possible.

    The cache lives beside the source, else in the user's own cache directory (both are numba's
    choice), else in a private directory under the temporary one; else there is none.

    Args:
        function: A function over numpy arrays and scalars; it must not allocate per element.

    Returns:
        The compiled dispatcher, called like the function. Threads may call it at the same time.
    """
    _kernels.append(_compiler(function))
    return cast("_Function", _kernels[-1])


def compiled_into_cache() -> bool:
    """Whether this process compiled a kernel where the next process finds it."""
    known = [kernel.stats for kernel in _kernels if hasattr(kernel, "stats")]  # not with JIT off
    return any(stats.cache_misses and stats.cache_path for stats in known)


def leave_out_linear_algebra() -> None:
    """Keep numba from importing scipy with its first kernel, in a process that has no other use.

    It looks there for the BLAS of ``numpy.linalg``, which no kernel calls: 0.2 s and 8 MiB.
    Where it is not installed, or is imported already, nothing changes.
    """
    if "scipy.linalg" not in sys.modules:
        sys.modules["scipy.linalg"] = None  # type: ignore[assignment] # importing it fails


def _compiler(function: Callable[..., Any]) -> object:
    for decorate in (_cached, _cached_privately):
        try:
            return decorate(function)
        except (RuntimeError, OSError) as error:  # numba: "no locator available"
            _log.debug("no kernel cache by %s: %s", decorate.__name__, error)
    return numba.njit(nogil=True)(function)


def _cached(function: Callable[..., Any]) -> object:
    compiled = numba.njit(nogil=True, cache=True)(function)
    cache = getattr(compiled, "_cache", None)  # none with JIT off
    if cache is not None:
        files, name = cache._cache_file, cache._impl.filename_base
        cache._cache_file = _CodeFiles(cache.cache_path, name, files._source_stamp)
    return compiled


def _cached_privately(function: Callable[..., Any]) -> object:
    directory = private_cache_directory()
    if directory is None:
        raise RuntimeError("no private cache directory")
    # The directory is chosen at decoration, so other users of numba keep their own setting.
    before = config.CACHE_DIR  # type: ignore[attr-defined]
    config.CACHE_DIR = str(directory)  # type: ignore[attr-defined]
    try:
        return _cached(function)
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
