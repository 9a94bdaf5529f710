"""Handing a tensor to a Ray actor that is up already: from the call to the actor's answer.

The actor reads the first element and forgets the tensor. Ray copies a tensor of memory into its
object store, which is /dev/shm; ours is a file, of which the path travels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import torch

import overspill as ov
from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, SpeedTarget
from benchmarks.local_cluster import STORE_BYTES, local_cluster, on_node
from benchmarks.place import place_for
from overspill.units import format_bytes

# The store holds what a round puts there before it is freed.
MOST_BYTES = STORE_BYTES // 4
OURS, TENSOR, ARRAY = "overspill", "Ray object store, a tensor", "Ray object store, an array"
HELD, LIMIT = "Ray object store, put before", "a call without a tensor"
_PAYLOAD = "payload bytes"
_REPEATS = 20
_SHARES = (16, 4, 1)


class User:
    """An actor that looks at what it is given."""

    def use(self, given: Any) -> int:
        """Read the first element, whatever holds it."""
        return 0 if isinstance(given, int) else int(given.reshape(-1)[0])


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """One case over several sizes, with an actor on a Ray node of this machine.

    Args:
        directory: On a disk; holds the spilled tensors.
        nbytes: The largest size, 40 MiB by default and at most; the others are a quarter and a
            sixteenth of it.

    Yields:
        The case.
    """
    most = min(nbytes or MOST_BYTES, MOST_BYTES)
    sizes = [max(1, most // share) for share in _SHARES]
    with place_for(directory, sum(sizes)), local_cluster(1):
        make: Any = ray.remote(num_cpus=0, resources=on_node(0))(User)
        actor = make.remote()
        yield [_case(lambda given: ray.get(actor.use.remote(given)), sizes)]


def _case(send: Callable[[Any], Any], sizes: list[int]) -> Case:
    contenders = [Contender(name=LIMIT, act=lambda _: send(0), repeats=10 * _REPEATS)]
    for size in sizes:
        contenders += _of_size(send, size)
    largest = f"{OURS}, {format_bytes(sizes[-1])}"
    return Case(
        name="hand-over to a Ray actor",
        contenders=contenders,
        baseline=largest,
        limit=LIMIT,
        targets=[
            SpeedTarget(of=largest, against=f"{OURS}, {format_bytes(sizes[0])}", at_least=0.5),
            SpeedTarget(of=largest, against=LIMIT, at_least=0.5),
            *(
                Bound(of=f"{OURS}, {format_bytes(size)}", figure=_PAYLOAD, at_most=1023)
                for size in sizes
            ),
        ],
    )


def _of_size(send: Callable[[Any], Any], size: int) -> list[Contender]:
    held = torch.ones(size, dtype=torch.uint8)
    spilled = ov.spill_tensor_to_disk(held, required=True)
    payload = len(ray.cloudpickle.dumps(spilled))  # type: ignore[no-untyped-call]

    def contender(name: str, act: Callable[[Any], Any], **more: Any) -> Contender:
        return Contender(
            name=f"{name}, {format_bytes(size)}",
            act=act,
            repeats=_REPEATS,
            point=(name, size),
            **more,
        )

    send(spilled)
    return [
        contender(OURS, lambda _: send(spilled), after=lambda _: {_PAYLOAD: payload}),
        contender(TENSOR, lambda _: send(held)),
        contender(ARRAY, lambda _: send(held.numpy()), note="numpy, which Ray does not pickle"),
        contender(HELD, send, before=lambda: ray.put(held.numpy()), note="the call alone"),
    ]


if __name__ == "__main__":
    sys.exit(main([opened]))
