"""Handing a tensor to a process that is up already: from the put to the receiver's answer.

The receiver reads the first element and forgets the tensor, so that each send maps anew.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch
import torch.multiprocessing as mp

import overspill as ov
from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, Figures, SpeedTarget
from benchmarks.place import place_for
from overspill.units import format_bytes

DEFAULT_SIZES = (16 << 20, 256 << 20, 2 << 30)
LIMIT = "the pipe alone"
_PAYLOAD = "payload bytes"
_GROWTH = "/dev/shm growth in bytes"
_SHM = "/dev/shm"
# A round trip takes a fraction of a millisecond: a few alone measure the scheduler.
_SHORT_REPEATS = 50
_BARE_REPEATS = 2000
_ANSWER_SECONDS = 120


class Receiver:
    """A spawned process that answers each message; started and warm when entered."""

    def __init__(self) -> None:
        context = mp.get_context("spawn")
        self._mine, self._theirs = context.Pipe()
        self._process = context.Process(target=_receive, args=(self._theirs,))

    def send(self, message: object) -> None:
        """Send, and wait until the receiver has used it."""
        self._mine.send(message)
        # A receiver that died would otherwise be waited for without end.
        if not self._mine.poll(_ANSWER_SECONDS):
            raise RuntimeError("the receiver does not answer")
        self._mine.recv()

    def __enter__(self) -> Receiver:
        self._process.start()
        self._theirs.close()
        self.send(0)
        return self

    def __exit__(self, *_error: object) -> None:
        # Its end of the pipe closes: the receiver leaves its loop.
        self._mine.close()
        self._process.join(_ANSWER_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """One case over several sizes, with a receiver that is up.

    Args:
        directory: On a disk; holds the spilled tensors.
        nbytes: The largest size; the others are an eighth and a hundred-and-twenty-eighth of it.

    Yields:
        The case.
    """
    sizes = DEFAULT_SIZES if nbytes is None else (nbytes // 128 or 1, nbytes // 8 or 1, nbytes)
    with place_for(directory, sum(sizes)), Receiver() as receiver:
        yield [_case(receiver, sizes)]


def _case(receiver: Receiver, sizes: Sequence[int]) -> Case:
    contenders = [Contender(name=LIMIT, act=lambda _: receiver.send(0), repeats=_BARE_REPEATS)]
    for size in sizes:
        contenders += _of_size(receiver, size)
    smallest, largest = _ours(sizes[0]), _ours(sizes[-1])
    bounds = [
        Bound(of=_ours(size), figure=figure, at_most=at_most)
        for size in sizes
        for figure, at_most in ((_PAYLOAD, 1023), (_GROWTH, 0))
    ]
    return Case(
        name="hand-over to a spawned process",
        contenders=contenders,
        baseline=smallest,
        limit=LIMIT,
        targets=[SpeedTarget(of=largest, against=smallest, at_least=0.5), *bounds],
    )


def _of_size(receiver: Receiver, size: int) -> list[Contender]:
    spilled = ov.spill_tensor_to_disk(torch.ones(size, dtype=torch.uint8), required=True)
    label = format_bytes(size)

    def send(watched: Watched) -> Watched:
        receiver.send(watched.tensor)
        return watched

    def grown(watched: Watched | None) -> Figures:
        return {} if watched is None else {_GROWTH: watched.growth()}

    def fresh() -> Watched:
        return Watched(torch.ones(size, dtype=torch.uint8))

    def already_shared() -> Watched:
        tensor = torch.ones(size, dtype=torch.uint8)
        tensor.untyped_storage().share_memory_()
        return Watched(tensor)

    def ours_grown(watched: Watched | None) -> Figures:
        return {_PAYLOAD: len(ForkingPickler.dumps(spilled)), **grown(watched)}

    return [
        Contender(
            name=_ours(size),
            before=lambda: Watched(spilled),
            act=send,
            after=ours_grown,
            repeats=_SHORT_REPEATS,
            point=("overspill", size),
        ),
        Contender(
            name=f"torch, first send, {label}",
            before=fresh,
            act=send,
            after=grown,
            point=("torch, first send", size),
            note="copies it into shared memory",
        ),
        Contender(
            name=f"torch, second send, {label}",
            before=already_shared,
            act=send,
            repeats=_SHORT_REPEATS,
            point=("torch, second send", size),
        ),
    ]


class Watched:
    """A tensor, and what /dev/shm held before it was sent."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        assert tensor is not None
        self.tensor = tensor
        self._before = _shm_bytes()

    def growth(self) -> int:
        """Bytes that /dev/shm has gained; other programs' share included."""
        return _shm_bytes() - self._before


def _ours(size: int) -> str:
    return f"overspill, {format_bytes(size)}"


def _shm_bytes() -> int:
    held = os.statvfs(_SHM)
    return (held.f_blocks - held.f_bfree) * held.f_frsize


def _receive(pipe: Connection) -> None:
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        if isinstance(message, torch.Tensor):
            int(message.view(-1)[0])
        del message
        pipe.send(0)


if __name__ == "__main__":
    sys.exit(main([opened]))
