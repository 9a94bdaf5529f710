from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from capabilities import requires
from overspill.errors import DiskRefusedError, SpillDirError
from overspill.storage import nameless_files
from overspill.storage.nameless_files import open_nameless_file
from spilling import open_descriptors

MIB = 1 << 20


def entries(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def test_every_block_is_reserved_and_there_is_no_name(spill_dir: Path) -> None:
    fd = open_nameless_file(spill_dir, MIB)
    try:
        held = os.fstat(fd)
        assert (held.st_size, held.st_nlink) == (MIB, 0)
        assert held.st_blocks * 512 >= MIB
        assert held.st_mode & 0o777 == 0o600
        assert not os.get_inheritable(fd)
        assert entries(spill_dir) == []
        os.pwrite(fd, b"data", 100)
        assert os.pread(fd, 4, 100) == b"data"
    finally:
        os.close(fd)


def test_without_the_flag_a_file_of_the_run_loses_its_name_at_once(
    spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def old(path: object, flags: int, *rest: object, **more: object) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", old)
    fd = open_nameless_file(spill_dir, MIB)
    try:
        assert (os.fstat(fd).st_size, os.fstat(fd).st_nlink) == (MIB, 0)
        assert [Path(name).name for name in entries(spill_dir)] == ["lease"]
    finally:
        os.close(fd)


def test_the_limit_counts_what_the_run_holds_beside_it(spill_dir: Path) -> None:
    os.close(open_nameless_file(spill_dir, 1000, disk_limit_bytes=1000))
    with pytest.raises(DiskRefusedError, match="OVERSPILL_DISK_LIMIT") as caught:
        open_nameless_file(spill_dir, 1001, disk_limit_bytes=1000)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (1001, 1000)


def test_more_than_the_disk_is_refused_and_nothing_is_left(spill_dir: Path) -> None:
    spill_dir.mkdir()
    before = open_descriptors()
    with pytest.raises(DiskRefusedError) as caught:
        open_nameless_file(spill_dir, 1 << 52)
    assert caught.value.errno == errno.ENOSPC
    assert entries(spill_dir) == [] and open_descriptors() == before


@requires("loop_device")
def test_a_full_disk_gives_back_what_it_had_reserved(loop_disk: Callable[[int], Path]) -> None:
    place = loop_disk(16 * MIB)
    free = os.statvfs(place).f_bavail
    with pytest.raises(DiskRefusedError):
        open_nameless_file(place, 15 * MIB)
    assert os.statvfs(place).f_bavail == free


@requires("private_mount")
def test_memory_in_disguise_is_refused(memory_disk: Callable[..., Path]) -> None:
    with pytest.raises(SpillDirError, match="which is memory"):
        open_nameless_file(memory_disk("tmpfs"), 4096)


def test_a_directory_that_was_removed_is_an_error_and_then_made_again(spill_dir: Path) -> None:
    os.close(open_nameless_file(spill_dir, 4096))
    spill_dir.rmdir()
    with pytest.raises((SpillDirError, DiskRefusedError)):
        open_nameless_file(spill_dir, 4096)
    nameless_files._usable.cache_clear()
    os.close(open_nameless_file(spill_dir, 4096))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, DiskRefusedError),
        (errno.ENFILE, DiskRefusedError),
        (errno.EACCES, SpillDirError),
        (errno.EROFS, SpillDirError),
    ],
)
def test_what_the_system_refuses_is_a_named_error(
    number: int, kind: type[OSError], spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.close(open_nameless_file(spill_dir, 4096))

    def refuse(*_args: object, **_more: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(kind) as caught:
        open_nameless_file(spill_dir, 4096)
    assert caught.value.errno == number
    assert ("ulimit -n" in str(caught.value)) == (number == errno.EMFILE)
