"""Which processes hold a file: of this machine, and of fake /proc trees."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from capabilities import requires
from overspill.linux.holders import command_of, find_mappings, find_open_files
from overspill.linux.mapping import map_file

LEASE = re.compile(r"/(run-\d+)/lease$")
NAME = re.compile(rb"/(run-\d+)/(\w+)\.bin( \(deleted\))?$")


@pytest.fixture
def lease(tmp_path: Path) -> Path:
    path = tmp_path / "run-7" / "lease"
    path.parent.mkdir()
    path.touch()
    return path


def fake_process(proc: Path, pid: int, *targets: str, maps: str = "") -> None:
    (proc / str(pid) / "fd").mkdir(parents=True)
    for number, target in enumerate(targets):
        (proc / str(pid) / "fd" / str(number)).symlink_to(target)
    (proc / str(pid) / "maps").write_text(maps)


def test_those_who_have_it_open_are_found_whoever_took_the_lock(lease: Path) -> None:
    assert find_open_files(LEASE).holders.get("run-7") is None
    with lease.open() as held:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[held.fileno()])
        try:
            assert find_open_files(LEASE).holders["run-7"] == {os.getpid(), child.pid}
        finally:
            child.communicate()
        assert find_open_files(LEASE).holders["run-7"] == {os.getpid()}


def test_names_are_compared_and_nothing_else(tmp_path: Path) -> None:
    fake_process(tmp_path, 11, "/far/away/run-1/lease", "/x/run-2/lease (deleted)", "socket:[1]")
    fake_process(tmp_path, 12, "/other/root/run-1/lease", "/x/run-3/lease/below")
    (tmp_path / "13").mkdir()  # it has ended
    (tmp_path / "self").mkdir()
    (tmp_path / "14" / "fd" / "0").mkdir(parents=True)  # a descriptor that was closed meanwhile
    found = find_open_files(LEASE, proc=tmp_path)
    assert found.holders == {"run-1": {11, 12}}
    assert found.hidden == frozenset()
    assert find_open_files(LEASE, proc=tmp_path / "none").holders == {}


def test_who_does_not_let_one_look_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_process(tmp_path, 11, "/x/run-1/lease")
    fake_process(tmp_path, 12, "/x/run-1/lease")
    listdir = os.listdir

    def closed(path: Path) -> list[str]:
        if "12" in Path(path).parts:
            raise PermissionError(13, "no")
        return listdir(path)

    monkeypatch.setattr(os, "listdir", closed)
    found = find_open_files(LEASE, proc=tmp_path)
    assert (found.holders, found.hidden) == ({"run-1": {11}}, {12})


def test_mappings_are_told_named_or_not(tmp_path: Path) -> None:
    directory = tmp_path / "run-7"
    directory.mkdir()
    held = []
    for name in ("kept", "gone"):
        (directory / f"{name}.bin").write_bytes(bytes(3 * mmap.PAGESIZE))
        held.append(map_file(directory / f"{name}.bin", nbytes=3 * mmap.PAGESIZE))
    (directory / "gone.bin").unlink()
    ranges = find_mappings(os.getpid(), NAME)
    assert ranges is not None
    assert sorted(one.found for one in ranges) == [
        ("run-7", "gone", " (deleted)"),
        ("run-7", "kept", ""),
    ]
    assert {one.nbytes for one in ranges} == {3 * mmap.PAGESIZE}
    by_name = {one.found[1]: one.file[1] for one in ranges}
    assert by_name["kept"] == (directory / "kept.bin").stat().st_ino
    assert len({one.file for one in ranges}) == 2
    assert not np.asarray(held[0]).any()


def test_an_ended_process_maps_nothing_and_a_closed_one_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_mappings(11, NAME, proc=tmp_path) == []

    def refuses(self: Path) -> bytes:
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "read_bytes", refuses)
    assert find_mappings(11, NAME, proc=tmp_path) is None


@requires("unprivileged_user")
def test_processes_of_others_are_hidden_and_not_an_error(lease: Path) -> None:
    script = (
        "import os, re, sys\n"
        "from overspill.linux.holders import find_mappings, find_open_files\n"
        "os.setgroups([]), os.setgid(65534), os.setuid(65534)\n"
        "found = find_open_files(re.compile(r'/(run-7)/lease$'))\n"
        "parent = os.getppid()\n"
        "print(found.holders, parent in found.hidden, find_mappings(parent, re.compile(rb'.')))\n"
    )
    with lease.open():
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
    assert done.stdout.strip() == "{} True None", done.stderr


def test_commands_are_quoted_as_a_shell_takes_them(tmp_path: Path) -> None:
    for pid, line in ((11, b"python\0a b.py\0\xff\0"), (12, b"nginx: worker\0"), (13, b"")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(line)
    assert command_of(11, proc=tmp_path) == "python 'a b.py' '\udcff'"
    assert command_of(12, proc=tmp_path) == "nginx: worker"
    assert command_of(13, proc=tmp_path) is None
    assert command_of(14, proc=tmp_path) is None
    assert "python" in (command_of(os.getpid()) or "")
