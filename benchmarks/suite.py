"""The whole suite: each benchmark at a size and with rounds that make a quarter of an hour of all.

Every benchmark is a process of its own, so that none inherits another's memory, threads or caches;
one that cannot run is told with its reason, and the others run all the same.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import end_put_off, exact_size, told_to_end
from benchmarks.machine import described
from benchmarks.stored import (
    Measured,
    commit_of_project,
    read_json,
    to_plain,
    today,
    write_json,
)

RESULTS = Path(__file__).resolve().parent / "results"
SUITE = RESULTS / "suite.json"
_QUICK_SHARE, _QUICK_LEAST_BYTES = 64, 1 << 20
# What the machine's description would say once more.
_SHARED = ("date", "commit", "machine")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A benchmark of the suite.

    Attributes:
        name: Its module below `benchmarks`.
        size_bytes: Its size; None where it has none.
        rounds: Rounds that count.
        scaling: Rounds at each of two smaller sizes; None where there is no size.
    """

    name: str
    size_bytes: int | None
    rounds: int
    scaling: int | None


def _entry(name: str, size_bytes: int | None, rounds: int, scaling: int | None) -> Entry:
    return Entry(name=name, size_bytes=size_bytes, rounds=rounds, scaling=scaling)


_MIB, _GIB = 1 << 20, 1 << 30
ENTRIES = (
    _entry("import_time", None, 5, None),
    _entry("spill", 512 * _MIB, 5, 3),
    _entry("load", 512 * _MIB, 5, 3),
    _entry("hand_over", 256 * _MIB, 5, 1),
    _entry("hand_over_ray", 40 * _MIB, 5, 1),
    _entry("release", 512 * _MIB, 5, 3),
    _entry("csr", 160 * _MIB, 5, 3),
    _entry("build", 160 * _MIB, 3, 1),
    _entry("build_memory", 800 * _MIB, 3, 1),
    _entry("text_ids", 128 * _MIB, 3, 1),
    _entry("gather", 2 * _GIB, 3, 1),
    _entry("lookahead", 2 * _GIB, 2, 1),
    _entry("sampler", _GIB, 3, 1),
    _entry("training", 3 * _GIB, 3, 1),
    _entry("cluster", 320 * _MIB, 3, 1),
)
# Run by name only, and why.
APART = {
    "build_large": "500 million edges: the suite's build at a size of its own",
    "cluster_model": "holds the plan of a cluster against what 2, 3 and 4 nodes take",
    "loader_endurance": "hours of loaders: whether memory stays flat, not how fast",
}


def quick(entry: Entry) -> Entry:
    """The same so small that it shows nothing but whether it runs."""
    size = entry.size_bytes and max(entry.size_bytes // _QUICK_SHARE, _QUICK_LEAST_BYTES)
    return Entry(
        name=entry.name, size_bytes=size, rounds=1, scaling=None if entry.scaling is None else 1
    )


def command_of(entry: Entry, directory: Path, json: Path) -> list[str]:
    """The command line of a benchmark."""
    argv = [sys.executable, "-m", f"benchmarks.{entry.name}", "--dir", str(directory)]
    argv += ["--rounds", str(entry.rounds), "--json", str(json)]
    if entry.size_bytes is not None:
        argv += ["--size", exact_size(entry.size_bytes)]
    if entry.scaling is not None:
        argv += ["--scaling", str(entry.scaling)]
    return argv


def run_suite(
    entries: Sequence[Entry], directory: Path, *, run: Callable[[list[str]], int] | None = None
) -> dict[str, Any]:
    """Run benchmarks one after the other.

    Args:
        entries: Which.
        directory: On the disk to be measured.
        run: Runs a command and returns its exit status; for the tests.

    Returns:
        What JSON can hold: the day, the commit, the machine, the seconds, and by benchmark what it
        wrote, or why it wrote nothing.
    """
    held: dict[str, Any] = {
        "date": today(),
        "commit": commit_of_project(),
        "machine": described(directory),
    }
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="overspill-benchmark-") as place:
        held["entries"] = {
            entry.name: _measured(entry, directory, Path(place), run or _run) for entry in entries
        }
    return held | {"seconds": round(time.monotonic() - started)}


def merged(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """A suite of which some benchmarks ran anew: the machine's line is that of the new ones.

    The others keep their day, commit and machine; what failed anew leaves what was there before.
    """
    if before is None:
        return dict(now)
    shared = {name: before[name] for name in _SHARED if name in before}
    kept = {name: {**shared, **one} for name, one in before["entries"].items()}
    anew = {
        name: one for name, one in now["entries"].items() if not one["failed"] or name not in kept
    }
    entries = {**kept, **anew}
    ordered = [entry.name for entry in ENTRIES if entry.name in entries]
    seconds = round(sum(entries[name]["seconds"] for name in ordered))
    return {**now, "entries": {name: entries[name] for name in ordered}, "seconds": seconds}


def _measured(
    entry: Entry, directory: Path, place: Path, run: Callable[[list[str]], int]
) -> dict[str, Any]:
    print(f"# {entry.name}\n", flush=True)
    json = place / f"{entry.name}.json"
    started = time.monotonic()
    status = run(command_of(entry, directory, json))
    print(f"{entry.name} took {time.monotonic() - started:.0f} s\n", flush=True)
    if json.exists():
        held = read_json(json)
    else:
        held = to_plain(Measured(failed=f"it ended with status {status}"))
    return {name: value for name, value in held.items() if name not in _SHARED}


def _run(argv: list[str]) -> int:
    child = None
    try:
        # Told to end while it starts, nobody would know of it.
        with end_put_off():
            child = subprocess.Popen(argv, cwd=RESULTS.parents[1])
        return child.wait()
    except BaseException:
        if child is not None:  # it removes what it wrote: SIGTERM, and wait
            child.terminate()
            child.wait()
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite, or some of it, and write its results.

    Returns:
        The exit status: 0 when all ran, whatever they measured; 1 where one could not.
    """
    options = _parser().parse_args(arguments)
    chosen = [one for one in ENTRIES if not options.only or one.name in options.only]
    entries = [quick(one) for one in chosen] if options.quick else chosen
    with told_to_end():
        held = run_suite(entries, options.dir.absolute())
    failed = {name: one["failed"] for name, one in held["entries"].items() if one["failed"]}
    if options.out is None and not options.quick:
        options.out = SUITE
    if options.only and options.out is not None and options.out.exists():
        held = merged(read_json(options.out), held)
    print(f"{len(entries)} benchmarks took {held['seconds']} s", flush=True)
    if options.out is not None:
        write_json(options.out, held)
        print(f"results in {options.out}")
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path.cwd(), help="on the disk to be measured")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[entry.name for entry in ENTRIES],
        metavar="NAME",
        help="these benchmarks; the others' results stay as they are",
    )
    parser.add_argument(
        "--out", type=Path, help=f"where the results go: {SUITE.name}, or nowhere with --quick"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, one round: whether everything runs"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
