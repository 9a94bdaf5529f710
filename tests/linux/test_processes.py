"""What a process holds and maps: this one, a tree, and fake /proc trees."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.errors import UnavailableError
from overspill.linux.mapping import map_file
from overspill.linux.processes import has_mapping, maps_path, process_memory, process_tree_memory

MIB = 1 << 20
SCRIPT = """
    import mmap, os, sys
    from overspill.linux.processes import process_memory, process_tree_memory
    MIB = 1 << 20
    before = process_memory()
    held = bytearray(os.urandom(MIB)) * 50
    assert 49 * MIB < process_memory().anon_bytes - before.anon_bytes < 53 * MIB
    shared = mmap.mmap(-1, 30 * MIB)
    shared.write(b"s" * 30 * MIB)
    now = process_memory()
    assert 29 * MIB < now.shmem_bytes - before.shmem_bytes < 32 * MIB
    assert now.rss_bytes >= now.anon_bytes + now.shmem_bytes
    alone = process_tree_memory()
    ready, go = os.pipe(), os.pipe()
    for _ in range(3):
        if os.fork() == 0:
            shared[::4096]  # into the child's page table
            own = bytearray(os.urandom(MIB)) * 10
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
    for _ in range(3): os.read(ready[0], 1)
    tree = process_tree_memory()
    os.write(go[1], b"xxx")
    for _ in range(3): os.wait()
    grown = tree.anon_bytes - alone.anon_bytes
    assert 30 * MIB < grown < 45 * MIB, grown  # the 50 MiB of the parent are counted once
    assert 29 * MIB < tree.shmem_bytes < 34 * MIB, tree.shmem_bytes
    print("counted")
"""


def test_memory_is_told_by_kind_and_shared_pages_count_once(run_python: Callable[..., Any]) -> None:
    assert run_python(SCRIPT, fresh=True).check().stdout == "counted\n"


def test_this_process_and_another() -> None:
    own = process_memory()
    assert own == pytest.approx(own)
    assert own.source in ("smaps_rollup", "status")
    assert own.rss_bytes >= own.anon_bytes > 0
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        assert 0 < process_memory(child.pid).rss_bytes < own.rss_bytes
    finally:
        child.communicate()
    with pytest.raises(UnavailableError, match="cannot be looked at: No such file"):
        process_memory(child.pid)
    with pytest.raises(UnavailableError):
        process_tree_memory(child.pid)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Path]:
    proc = tmp_path / "proc"
    for name in ("self", "77"):
        (proc / name).mkdir(parents=True)
        (proc / name / "status").write_text(
            "Name:\tx\nVmRSS:\t 900 kB\nRssAnon:\t 500 kB\nRssFile:\t 300 kB\nRssShmem:\t 100 kB\n"
        )
    yield proc


def test_status_stands_in_for_the_rollup(fake: Path) -> None:
    memory = process_memory(77, proc=fake)
    assert (memory.anon_bytes, memory.file_bytes, memory.shmem_bytes) == (
        500 * 1024,
        300 * 1024,
        100 * 1024,
    )
    assert (memory.rss_bytes, memory.source) == (900 * 1024, "status")
    assert process_tree_memory(77, proc=fake) == memory


def test_the_rollup_is_believed(fake: Path) -> None:
    (fake / "self" / "smaps_rollup").write_text(
        "00-ff ---p 0 00:00 0 [rollup]\nRss: 1000 kB\nAnonymous: 600 kB\nPss: 9 kB\n"
    )
    memory = process_memory(proc=fake)
    assert (memory.anon_bytes, memory.file_bytes, memory.shmem_bytes) == (
        600 * 1024,
        300 * 1024,
        100 * 1024,
    )
    assert memory.source == "smaps_rollup"
    assert process_memory(exact=False, proc=fake).source == "status"


def test_a_mapping_is_found_by_device_and_inode_only(fake: Path) -> None:
    (fake / "self" / "maps").write_text(
        "7f00-7f01 rw-s 00000000 08:1f 4711 /some/where\n"
        "7f01-7f02 rw-p 00000000 00:00 0 [heap]\n7f02-7f03 ---p 0 00:00 0\n"
    )
    assert has_mapping(os.makedev(8, 0x1F), 4711, proc=fake)
    assert not has_mapping(os.makedev(8, 0x1F), 471, proc=fake)
    assert not has_mapping(os.makedev(8, 1), 4711, proc=fake)


def test_a_list_that_cannot_be_read_maps_nothing(tmp_path: Path) -> None:
    assert not has_mapping(1, 1, proc=tmp_path)


def test_a_split_and_unlinked_mapping_is_found(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 5000)
    held = path.stat()
    assert not has_mapping(held.st_dev, held.st_ino)
    view = np.asarray(map_file(path, nbytes=5000))[4096:]
    path.unlink()
    assert has_mapping(held.st_dev, held.st_ino)
    del view
    assert not has_mapping(held.st_dev, held.st_ino)


class TestMappedPaths:
    def test_by_path_through_links_and_after_unlink(self, tmp_path: Path) -> None:
        path = tmp_path / "data"
        path.write_bytes(bytes(8192))
        (tmp_path / "link").symlink_to(path)
        assert not maps_path(path)
        mapping = map_file(path, nbytes=8192)
        assert maps_path(path) and maps_path(str(tmp_path / "link"))
        path.unlink()
        assert maps_path(path)
        path.write_bytes(bytes(8192))
        assert not maps_path(path)
        del mapping

    @pytest.mark.parametrize(
        ("inode", "name", "expected"),
        [
            ("same", "same", True),  # btrfs: another device, the same inode
            ("other", "same", False),  # replaced by rename under a mapping of the old one
            ("same", "other", False),
        ],
    )
    def test_a_list_that_shows_another_device(
        self, inode: str, name: str, expected: bool, tmp_path: Path
    ) -> None:
        path = tmp_path / "data"
        path.touch()
        number = path.stat().st_ino + (inode == "other")
        told = path if name == "same" else tmp_path / "more"
        (tmp_path / "proc" / "self").mkdir(parents=True)
        line = f"7f00-7f10 rw-s 00000000 ff:ff {number}                     {told}\n"
        (tmp_path / "proc" / "self" / "maps").write_text("7f00-7f10 r--p 0 00:00 0\n" + line)
        assert maps_path(path, proc=tmp_path / "proc") is expected

    def test_no_list_is_no(self, tmp_path: Path) -> None:
        path = tmp_path / "data"
        path.write_bytes(bytes(4096))
        mapping = map_file(path, nbytes=4096)
        assert maps_path(path) and not maps_path(path, proc=tmp_path)
        del mapping
