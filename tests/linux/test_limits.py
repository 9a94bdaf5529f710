"""Limits as this process has them, and as fake trees tell them."""

from __future__ import annotations

import dataclasses
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from overspill.linux import limits
from overspill.linux.limits import process_limits


def test_the_process_has_what_the_system_says() -> None:
    held = process_limits()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (held.open_files, held.most_open_files) == (soft, hard)
    assert held.mappings == int(Path("/proc/sys/vm/max_map_count").read_text())
    assert held.overcommit in (0, 1, 2)


def test_lowered_limits_are_told_and_infinity_is_none() -> None:
    script = (
        "import resource as r\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 200))\n"
        "r.setrlimit(r.RLIMIT_FSIZE, (4096, r.RLIM_INFINITY))\n"
        "from overspill.linux.limits import process_limits\n"
        "held = process_limits()\n"
        "print(held.open_files, held.most_open_files, held.file_size_bytes,"
        " held.address_space_bytes)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["100", "200", "4096", "None"], done.stderr


@pytest.mark.parametrize(("text", "told"), [("1024\n", 1024), ("many\n", None), (None, None)])
def test_the_kernel_s_numbers(tmp_path: Path, text: str | None, told: int | None) -> None:
    (tmp_path / "sys/vm").mkdir(parents=True)
    if text is not None:
        (tmp_path / "sys/vm/max_map_count").write_text(text)
        (tmp_path / "sys/vm/overcommit_memory").write_text("2\n")
    held = process_limits(proc=tmp_path)
    assert held.mappings == told
    assert held.overcommit == (None if text is None else 2)


def test_a_system_without_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "resource", None)
    assert set(dataclasses.asdict(process_limits(proc=tmp_path)).values()) == {None}
