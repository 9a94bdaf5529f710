"""The command line that every case shares."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.harness import MIN_ROUNDS, Case, Result, narrowed, run_case
from benchmarks.machine import described
from benchmarks.report import rendered, scaling_told
from benchmarks.scaling import Series, holds_points, series_across, series_within
from benchmarks.stored import Measured, commit_of_project, to_plain, today, write_json
from overspill.errors import OverspillError
from overspill.units import format_bytes, parse_bytes

# Beside the size itself: a factor of four apart.
_SHARES = (16, 4)
# Gives the cases of a benchmark, ready to run, for a directory and a size (None: its own).
Opened = Callable[[Path, int | None], AbstractContextManager[Iterable[Case]]]


def main(benchmarks: Sequence[Opened], arguments: Sequence[str] | None = None) -> int:
    """Run benchmarks one after the other, print their tables, and write JSON if asked.

    Args:
        benchmarks: What to run.
        arguments: The command line; None takes the process's own.

    Returns:
        The exit status: 0 when everything ran, whatever it measured; 2 when it could not run.
    """
    options = _parser().parse_args(arguments)
    machine = described(options.dir)
    print(", ".join(f"{name} {value}" for name, value in machine.items()), "\n", flush=True)
    started = time.monotonic()
    held = Measured(
        date=today(), commit=commit_of_project(), machine=machine, options=_told(options)
    )
    try:
        with told_to_end():
            held = replace(held, **_run(benchmarks, options))
    except OverspillError as error:
        print(f"error: {error}", file=sys.stderr)
        held = replace(held, failed=str(error))
    if options.json is not None:
        write_json(options.json, to_plain(replace(held, seconds=time.monotonic() - started)))
    return 2 if held.failed else 0


def _run(benchmarks: Sequence[Opened], options: argparse.Namespace) -> dict[str, Any]:
    results: list[Result] = []
    series: list[Series] = []
    for opened in benchmarks:
        found = _measured(opened, options)
        results += found
        if options.scaling is not None:
            series += _scaled(opened, options, found)
    if series:
        print(scaling_told(series), flush=True)
    return {"results": results, "series": series}


def _measured(opened: Opened, options: argparse.Namespace) -> list[Result]:
    results = []
    with opened(options.dir, options.size) as cases:
        for case in cases:
            results.append(run_case(case, rounds=options.rounds, told=_progress))
            print(rendered(results[-1]), flush=True)
    return results


def _scaled(
    opened: Opened, options: argparse.Namespace, results: Sequence[Result]
) -> Iterator[Series]:
    """How the cases grow: by themselves, or by running ours and the limit at smaller sizes too."""
    if any(holds_points(one.case) for one in results):
        for one in results:
            yield from series_within(one)
    elif options.size is not None and any(one.case.scales for one in results):
        smaller = [
            (options.size // share, _at_size(opened, options, options.size // share))
            for share in _SHARES
        ]
        yield from series_across([*smaller, (options.size, results)])


def _at_size(opened: Opened, options: argparse.Namespace, size: int) -> list[Result]:
    results = []
    with opened(options.dir, size) as cases:
        for case in cases:
            if case.scales:
                _progress(f"at {format_bytes(size)}:")
                results.append(run_case(narrowed(case), rounds=options.scaling, told=_progress))
            else:
                results.append(Result(case, [], 0))
    return results


def exact_size(nbytes: int) -> str:
    """A size as ``--size`` takes it, in the largest unit that it is whole in."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift}{unit}"
    return f"{nbytes}B"


def _told(options: argparse.Namespace) -> str:
    told = [f"--rounds {options.rounds}"]
    if options.size is not None:
        told.append(f"--size {exact_size(options.size)}")
    if options.scaling is not None:
        told.append(f"--scaling {options.scaling}")
    return " ".join(told)


@contextmanager
def told_to_end() -> Iterator[None]:
    """For the span, SIGTERM is an exit that removes what was written."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def end_put_off() -> Iterator[None]:
    """For the span, SIGTERM waits, and is handled at its end: what begins in it is known then."""
    waiting: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGTERM, lambda *what: waiting.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if waiting and callable(before):
        before(*waiting[0])


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--dir", type=_directory, default=Path.cwd(), help="where to write; a directory on a disk"
    )
    parser.add_argument("--rounds", type=_rounds, default=MIN_ROUNDS, help="rounds that must count")
    parser.add_argument("--size", type=parse_bytes, help='size of the data, like "2GiB"')
    parser.add_argument(
        "--scaling",
        type=_rounds,
        metavar="ROUNDS",
        help="so many rounds too at a quarter and a sixteenth of --size, ours and the limit alone",
    )
    parser.add_argument("--json", type=Path, help="write every round to this file")
    return parser


def _rounds(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least one")
    return count


def _directory(text: str) -> Path:
    place = Path(text).absolute()
    if not place.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a directory")
    return place
