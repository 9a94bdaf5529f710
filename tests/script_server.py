"""Runs scripts, each in a fork of a process that has imported torch and PyG once.

    python script_server.py DESCRIPTOR

The descriptor is a socket. A request is a line of JSON with the descriptors of its output; the
answers are the number of the process, and how it ended. The fork is a process of its own for all
that a script may do, its import of overspill included; what it does not show is how an interpreter
starts and how it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import threading
import types
from pathlib import Path
from typing import Any, NoReturn

import numba
import pyarrow
import torch
import torch.utils.data
import torch_geometric.loader
import torch_geometric.nn

from leaks import isolate_shared_memory

__all__ = ["numba", "pyarrow", "torch", "torch_geometric"]
LONGEST_REQUEST = 1 << 17


def main() -> None:
    """Answer requests until the other side is gone."""
    link = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()  # what is imported is not looked at again in every fork
    while True:
        told, descriptors, _, _ = socket.recv_fds(link, LONGEST_REQUEST, 2)
        if not told:
            return
        child = os.fork()
        if child == 0:
            link.close()
            _run(json.loads(told), descriptors)
        for fd in descriptors:
            os.close(fd)
        with contextlib.suppress(BrokenPipeError):  # who asked was killed
            link.send(b"%d" % child)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            link.send(b"%d" % status)


def _run(request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((null, *descriptors)):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["shm_bytes"] is not None and not isolate_shared_memory(request["shm_bytes"]):
        sys.exit("no /dev/shm of its own could be made")
    path = request["path"]
    sys.argv = [path, *request["arguments"]]
    sys.path[0] = os.path.dirname(path)  # noqa: PTH120
    # Found by name in forked workers, and by its file in spawned ones, as that of any script.
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    status = _status_of(path, module)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    module.__dict__.clear()
    _end(status)


def _status_of(path: str, module: types.ModuleType) -> int:
    try:
        exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - a script may raise anything
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """End as any program does, but without taking torch apart module by module."""
    gc.collect()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
