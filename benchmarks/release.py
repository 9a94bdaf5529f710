"""Giving back the page cache of a mapped tensor: how many bytes come back, and how fast.

The kernel skips dirty pages, and pages in any page table, without a word; so dropping the cache by
posix_fadvise alone gives back nothing of what is mapped. The limit is what dropping costs when
nothing maps the file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import overspill as ov
from benchmarks.command import main
from benchmarks.harness import Bound, Case, Contender, Figures
from benchmarks.place import place_for
from overspill.linux.cache import cached_bytes
from overspill.units import format_bytes

DEFAULT_BYTES = 512 << 20
LIMIT = "posix_fadvise, nothing mapped"
_LEFT = "share left in memory"
_GIVEN = "bytes given back"
_PAGE_BYTES = 4096
_READ_BYTES = 8 << 20


@contextmanager
def opened(directory: Path, nbytes: int | None = None) -> Iterator[list[Case]]:
    """Cases for clean pages and for dirty ones.

    Args:
        directory: On the disk to measure.
        nbytes: Size of the tensor, in whole pages; 512 MiB by default.

    Yields:
        The cases.
    """
    size = max(1, (nbytes or DEFAULT_BYTES) // _PAGE_BYTES) * _PAGE_BYTES
    with place_for(directory, 2 * size) as place:
        held = ov.spill_tensor_to_disk(torch.ones(size, dtype=torch.uint8), required=True)
        assert held is not None
        loose = place / "loose.bin"
        loose.write_bytes(b"")
        os.truncate(loose, size)
        yield [_case("clean", held, loose, _touch), _case("dirty", held, loose, _dirty)]


def _case(kind: str, held: torch.Tensor, loose: Path, prepare: Callable[..., None]) -> Case:
    size = held.numel()
    path = Path(str(held.untyped_storage().filename))
    release, drop = f"release_page_cache, {kind}", f"posix_fadvise alone, {kind}"
    return Case(
        name=f"release {format_bytes(size)} of {kind} pages",
        contenders=[
            _contender(release, path, lambda: prepare(held), lambda: _release(held)),
            _contender(drop, path, lambda: prepare(held), lambda: _drop(path)),
            _contender(LIMIT, loose, lambda: _read(loose), lambda: _drop(loose)),
        ],
        baseline=release,
        limit=LIMIT,
        targets=[Bound(of=release, figure=_LEFT, at_most=0)],
    )


def _contender(
    name: str, path: Path, prepare: Callable[[], None], act: Callable[[], None]
) -> Contender:
    before = [0]

    def ready() -> None:
        prepare()
        before[0] = cached_bytes(path)

    def counted(_result: object) -> Figures:
        left = cached_bytes(path)
        return {_GIVEN: before[0] - left, _LEFT: left / before[0]}

    return Contender(
        name=name,
        before=ready,
        act=lambda _: act(),
        after=counted,
        nbytes=path.stat().st_size,
    )


def _touch(held: torch.Tensor) -> None:
    """Bring every page in and into this process's page table."""
    held[::_PAGE_BYTES].max()


def _dirty(held: torch.Tensor) -> None:
    held[::_PAGE_BYTES] += 1


def _read(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(_READ_BYTES):
            pass


def _release(held: torch.Tensor) -> None:
    done = ov.release_page_cache(held)
    if not done:
        raise RuntimeError(f"{done.failed_step}: {done.reason}")


def _drop(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main([opened]))
