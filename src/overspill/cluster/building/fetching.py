"""Files of other machines, through Ray: in blocks, a few at a time, to the same place here.

Bottleneck: the network. Memory: `_AHEAD` blocks in the object store of each side. A file appears
under its name only when it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from overspill.build.passes.spool import ScratchFile
from overspill.cluster.survey import this_address
from overspill.errors import OverspillError, StaleFileError
from overspill.storage.arrays import open_regular

_BLOCK_BYTES = 4 << 20
_AHEAD = 4


def fetch_file(path: Path, nbytes: int, node_id: str) -> None:
    """Fetch a file from another machine, to the same path here; what is here already stays.

    Args:
        path: The file, there and here.
        nbytes: Its size.
        node_id: Ray's name of the machine.

    Raises:
        StaleFileError: It is not there as it was, or cannot be read.
        DiskRefusedError: The disk refused.
    """
    if path.exists() and path.stat().st_size == nbytes:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)  # of an attempt that was killed
    file = ScratchFile(partial)
    try:
        for block in streamed(node_id, _blocks, str(path), nbytes):
            file.append(np.ascontiguousarray(block).data)
        file.seal()
        file.keep()
        partial.rename(path)
    finally:
        file.remove()


def streamed(node_id: str, make: Any, *arguments: Any) -> Iterator[npt.NDArray[Any]]:
    """The pieces that a function makes on another machine, a few ahead.

    Args:
        node_id: Ray's name of the machine.
        make: A function of a module that gives an iterator of arrays.
        *arguments: Of it; small.

    Raises:
        OverspillError: What the function raised there; names the machine.
    """
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    remote: Any = _stream.options(
        num_returns="streaming",
        num_cpus=0,
        scheduling_strategy=where,
        _generator_backpressure_num_objects=_AHEAD,
    )
    for piece in remote.remote(make, arguments):
        try:
            yield ray.get(piece)
        except RayTaskError as error:
            if isinstance(error.cause, OverspillError):
                raise error.cause from None
            raise


@ray.remote(max_retries=0)
def _stream(make: Any, arguments: tuple[Any, ...]) -> Iterator[npt.NDArray[Any]]:
    try:
        yield from make(*arguments)
    except OverspillError as error:
        # Whoever asked puts its own machine's name before it.
        error.message = f"from machine {this_address()}: {error.message}"
        error.args = (error.message,)
        raise


def _blocks(path: str, nbytes: int) -> Iterator[npt.NDArray[np.uint8]]:
    try:
        fd = open_regular(Path(path))
        try:
            if os.fstat(fd).st_size != nbytes:
                raise StaleFileError(f"{path} is not as it was staged", path=path, remedy=_REMEDY)
            for start in range(0, nbytes, _BLOCK_BYTES):
                data = os.pread(fd, min(_BLOCK_BYTES, nbytes - start), start)
                yield np.frombuffer(data, np.uint8)
                os.posix_fadvise(fd, 0, start + len(data), os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    except OSError as error:
        if isinstance(error, StaleFileError):
            raise
        raise StaleFileError(
            f"{path} cannot be read: {error.strerror}",
            path=path,
            errno=error.errno,
            remedy=_REMEDY,
        ) from error


_REMEDY = "run the stage partition again, which stages anew what is missing"
