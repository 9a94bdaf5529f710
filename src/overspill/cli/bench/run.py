"""The whole bench: a place, sizes that suit the disk, rounds, and what follows from them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from overspill.cli.bench.advice import LEFT, Advice, Conditions, advised
from overspill.cli.bench.figures import Figure, summarised
from overspill.cli.bench.files import pattern
from overspill.cli.bench.leftovers import leftovers
from overspill.cli.bench.place import place_for
from overspill.cli.bench.receiver import Receiver
from overspill.cli.bench.sizes import Sizes
from overspill.cli.bench.steps import Bench, Rates
from overspill.linux.cgroups import available_memory_bytes, usable_cpus
from overspill.linux.fetch import fetch_method
from overspill.linux.libc import require_linux
from overspill.linux.mounts import filesystem_type
from overspill.linux.random_reads import RandomReads
from overspill.linux.read_ahead import read_ahead
from overspill.linux.sequential import write_sequentially
from overspill.tensors import prepare_spill_dir

_PROBE_BYTES = 64 << 20
Told = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the bench found.

    Attributes:
        directory: Whose disk was measured, absolute.
        sizes: What was moved.
        rounds: Rounds that were made.
        seconds: How long it took.
        around: What the figures depend on.
        figures: By name, limits first.
        advice: What to do, in order.
    """

    directory: str
    sizes: Sizes
    rounds: int
    seconds: float
    around: Conditions
    figures: dict[str, Figure]
    advice: list[Advice]


def measure(
    parent: Path, sizes: Sizes, *, smaller: Sizes | None = None, told: Told = lambda *_: None
) -> Report:
    """Measure the disk under a directory, and Overspill on it; leaves nothing there.

    Args:
        parent: The directory.
        sizes: What to move, at most: a slow disk gets less.
        smaller: What --quick would move, for the remedy where there is too little room.
        told: Called with a phase, how many of its steps are done, and how many there are.

    Raises:
        SpillDirError: The directory cannot be used, or lies in memory.
        DiskRefusedError: Too little room, or the disk refused.
        UnavailableError: Not 64-bit Linux, or the process that receives tensors died.
        NoRoomError: Too little memory for a build.
    """
    require_linux("measuring a disk")
    started, load = time.monotonic(), os.getloadavg()[0]
    with place_for(parent, sizes, smaller=smaller) as work, Receiver() as receiver:
        prepare_spill_dir()
        told("preparing", 0, 3)
        fitted, direct, probed = _fit(work, sizes)
        told("preparing", 1, 3)
        bench = Bench(work, fitted, receiver)
        # Of two writes the smaller: another program's shared memory seldom grows along with both.
        in_memory = min(probed, _share_in_memory(bench.write_files, fitted.read_bytes))
        told("preparing", 2, 3)
        first = bench.prepare()
        told("preparing", 3, 3)
        around = _conditions(work, load, direct=direct, memory_share=in_memory, first=first)
        rounds = run_rounds(bench, fitted, started=started, told=told)
    figures = summarised(rounds)
    return Report(
        directory=str(parent.resolve()),
        sizes=fitted,
        rounds=len(rounds),
        seconds=time.monotonic() - started,
        around=around,
        figures=figures,
        advice=[*_left(parent), *advised(figures, around)],
    )


def _left(parent: Path) -> list[Advice]:
    left = leftovers(parent)
    if not left.sizes:
        return []
    return [Advice(LEFT, f"benches that were killed have left {left.told()}", left.command())]


def run_rounds(
    bench: Bench,
    sizes: Sizes,
    *,
    started: float,
    told: Told,
    clock: Callable[[], float] = time.monotonic,
) -> list[Rates]:
    """Run rounds, one at least, and no further one that would not end in time.

    Args:
        bench: Prepared.
        sizes: How many rounds, and how long after `started`.
        started: On the clock.
        told: See `measure`.
        clock: Seconds.

    Returns:
        The rates of each round.
    """
    rounds: list[Rates] = []
    longest = 0.0
    while len(rounds) < sizes.rounds:
        begun = clock()
        if rounds and begun - started + longest > sizes.most_seconds:
            break
        step = partial(told, f"round {len(rounds) + 1} of {sizes.rounds}")
        rounds.append(bench.round(turned=len(rounds) % 2 == 1, told=step))
        longest = max(longest, clock() - begun)
    return rounds


def _fit(work: Path, sizes: Sizes) -> tuple[Sizes, bool, float]:
    """Sizes that suit the disk, whether it has direct I/O, and the share that went to memory."""
    path, nbytes = work / "probe.bin", min(_PROBE_BYTES, sizes.write_bytes)
    direct, seconds = False, 0.0

    def write() -> None:
        nonlocal direct, seconds
        start = time.perf_counter()
        direct = write_sequentially(path, nbytes, pattern())
        seconds = time.perf_counter() - start

    in_memory = _share_in_memory(write, nbytes)
    path.unlink()
    available = available_memory_bytes()
    fitted = sizes.fitted(write_bytes_per_second=nbytes / seconds, available_bytes=available)
    return fitted, direct, in_memory


def _share_in_memory(write: Callable[[], None], nbytes: int) -> float:
    """How much shared memory grew with what was written: a disk in memory, whatever its name.

    The machine's, which is all that is told: another program's may have grown meanwhile.
    """
    before = psutil.virtual_memory().shared
    write()
    return max(0.0, (psutil.virtual_memory().shared - before) / nbytes)


def _conditions(
    work: Path, load: float, *, direct: bool, memory_share: float, first: RandomReads
) -> Conditions:
    window = read_ahead(work)
    return Conditions(
        file_system=filesystem_type(work),
        read_ahead_bytes=window.nbytes if window else None,
        read_ahead_setting=window.setting if window else None,
        direct=direct,
        asynchronous=first.way == "asynchronous",
        memory_share=memory_share,
        load_per_cpu=load / usable_cpus(),
        cpus=usable_cpus(),
        available_bytes=available_memory_bytes(),
        fetch_method=fetch_method(),
    )
