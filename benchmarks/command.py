"""The command line that every case shares."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from benchmarks.harness import MIN_ROUNDS, Case, run_case
from benchmarks.machine import described
from benchmarks.report import rendered, write_json
from overspill.errors import OverspillError
from overspill.units import parse_bytes

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
    results = []
    try:
        with _ended_in_order():
            for opened in benchmarks:
                with opened(options.dir, options.size) as cases:
                    for case in cases:
                        results.append(run_case(case, rounds=options.rounds, told=_progress))
                        print(rendered(results[-1]), flush=True)
    except OverspillError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json is not None:
        write_json(options.json, machine, results)
    return 0


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turn SIGTERM into an exit that removes what was written, for the span."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--dir", type=_directory, default=Path.cwd(), help="where to write; a directory on a disk"
    )
    parser.add_argument("--rounds", type=_rounds, default=MIN_ROUNDS, help="rounds that must count")
    parser.add_argument("--size", type=parse_bytes, help='size of the data, like "2GiB"')
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
