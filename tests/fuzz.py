"""Feed hostile files to everything that reads files, for as long as is asked.

``python tests/fuzz.py [--seconds 600] [--only NAME]``: under atheris, guided by coverage, where
that is installed; else under hypothesis. One process a target, so that a crash of one (a signal
included) is told by its name and stops no other; the file that did it is kept.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pkgutil import iter_modules

import hypothesis

import overspill.kernels

MEMORY_LIMIT_BYTES = 6 << 30  # of addresses, of which numba and pyarrow reserve far more than use
HANG_S = 60
COUNT_NAME = "count"


def fuzz_one(name: str, seconds: int, place: Path) -> None:
    """Fuzz one target until the time is over, an example fails, or the process dies."""
    try:
        import atheris
    except ImportError:
        atheris = None
    if atheris is not None:
        # numba cannot compile what is instrumented.
        kernels = [
            f"overspill.kernels.{module.name}"
            for module in iter_modules(overspill.kernels.__path__)
        ]
        with atheris.instrument_imports(include=["overspill"], exclude=kernels):
            from hostile_files import make_targets
    else:
        from hostile_files import make_targets
    (target,) = (one for one in make_targets(place) if one.name == name)
    numbers = itertools.count(1)
    counted = os.open(place / COUNT_NAME, os.O_WRONLY | os.O_CREAT)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))

    @hypothesis.settings(
        max_examples=10_000_000,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(target.contents())
    def example(content: bytes) -> None:
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        target.feed(content)
        faulthandler.cancel_dump_traceback_later()
        # Told from the first on: libFuzzer ends the process without returning.
        os.pwrite(counted, f"{next(numbers)} files".encode(), 0)

    if atheris is not None:
        # Of shorter ones hypothesis makes no file: it draws what to change from their bytes.
        corpus = place / "corpus"
        corpus.mkdir()
        for number in range(64):
            (corpus / str(number)).write_bytes(os.urandom(1024))
        options = [f"-max_total_time={seconds}", f"-artifact_prefix={place}/", "-max_len=4096"]
        atheris.Setup(
            [sys.argv[0], *options, "-len_control=0", str(corpus)],
            example.hypothesis.fuzz_one_input,
        )
        atheris.Fuzz()
        return
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        example.hypothesis.fuzz_one_input(os.urandom(4096))


def main() -> int:
    """Fuzz every target in turn; how many failed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=600, help="of all targets together")
    options.add_argument("--only", help="one target, by name")
    options.add_argument("--within", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.within is not None:
        fuzz_one(given.only, given.seconds, given.within)
        return 0
    from hostile_files import make_targets

    with tempfile.TemporaryDirectory() as place:
        names = [target.name for target in make_targets(Path(place))]
    chosen = [name for name in names if given.only in (None, name)]
    failed = 0
    for name in chosen:
        place = Path(tempfile.mkdtemp(prefix="overspill-fuzz-"))
        share = max(1, given.seconds // len(chosen))
        argv = [sys.executable, __file__, f"--seconds={share}", f"--only={name}"]
        done = subprocess.run([*argv, f"--within={place}"], capture_output=True, text=True)
        told = (place / COUNT_NAME).read_text() if (place / COUNT_NAME).exists() else "no file"
        print(f"{name}: {told}, {f'exit {done.returncode}' if done.returncode else 'passed'}")
        if done.returncode:
            failed += 1
            print(f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\nthe file is kept below {place}")
        else:
            subprocess.run(["rm", "-r", str(place)], check=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
