"""The C library, opened once: one table of signatures, one place that turns -1 into OSError.

ctypes releases the interpreter's lock for the length of a call and keeps errno per thread, so every
function here may be used from several threads. Nothing is held that a fork could break.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Any

from overspill.errors import UnavailableError

# 64-bit only: off_t and size_t are then one width, and no address is negative as a ssize_t.
SUPPORTED = sys.platform == "linux" and sys.maxsize > 2**32

_INT = ctypes.c_int
_SIZE = ctypes.c_size_t
_OFFSET = ctypes.c_int64
_COUNT = ctypes.c_ulong
_ADDRESS = ctypes.c_void_p
_ARGUMENTS: dict[str, tuple[Any, ...] | None] = {
    "fallocate": (_INT, _INT, _OFFSET, _OFFSET),
    "sync_file_range": (_INT, _OFFSET, _OFFSET, ctypes.c_uint),
    "mmap": (_ADDRESS, _SIZE, _INT, _INT, _INT, _OFFSET),
    "munmap": (_ADDRESS, _SIZE),
    "madvise": (_ADDRESS, _SIZE, _INT),
    "mincore": (_ADDRESS, _SIZE, _ADDRESS),
    "process_vm_readv": (_INT, _ADDRESS, _COUNT, _ADDRESS, _COUNT, _COUNT),
    "statfs": (ctypes.c_char_p, _ADDRESS),
    "statx": (_INT, ctypes.c_char_p, _INT, ctypes.c_uint, _ADDRESS),
    "syscall": None,  # variadic: every argument is passed as a long by `system_call`
}
_LONG_RESULTS = frozenset({"mmap", "process_vm_readv", "syscall"})
_functions: dict[str, Any] = {}


def call(name: str, *arguments: object) -> int:
    """Call a function of the C library that returns -1 and sets errno on failure.

    A call interrupted by a signal is made again; Python's own signal handlers run in between, so
    KeyboardInterrupt still gets through.

    Args:
        name: A function of this module's table.
        *arguments: Its arguments.

    Returns:
        The result: a count, or an address for mmap.

    Raises:
        OSError: The call failed; errno says why. ENOSYS where the C library lacks the function.
        UnavailableError: This is not 64-bit Linux.
    """
    function = _functions.get(name) or _bind(name)
    while True:
        result = int(function(*arguments))
        if result != -1:
            return result
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def system_call(number: int, *arguments: int) -> int:
    """Make a system call by its number, for those that older C libraries do not wrap.

    Raises:
        OSError: The call failed.
        UnavailableError: This is not 64-bit Linux.
    """
    return call("syscall", ctypes.c_long(number), *(ctypes.c_long(value) for value in arguments))


def require_linux(what: str) -> None:
    """Raise UnavailableError, naming ``what``, unless this is 64-bit Linux."""
    if not SUPPORTED:
        raise UnavailableError(
            f"{what} needs 64-bit Linux; this is {sys.platform}",
            remedy="keep the data in memory, or run on Linux",
        )


def _bind(name: str) -> Any:
    require_linux(f"{name}(2)")
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except AttributeError as error:
        raise OSError(errno.ENOSYS, f"the C library has no {name}") from error
    # An int's -1 leaves the upper half of the register undefined: read as a long it is no error.
    function.restype = ctypes.c_ssize_t if name in _LONG_RESULTS else _INT
    arguments = _ARGUMENTS[name]
    if arguments is not None:
        function.argtypes = arguments
    _functions[name] = function
    return function
