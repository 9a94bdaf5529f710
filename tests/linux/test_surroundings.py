"""Containers by the marks that they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from overspill.linux.surroundings import surroundings


@pytest.mark.parametrize(
    ("mark", "groups", "told"),
    [
        (None, "0::/user.slice/session-1.scope", "host"),
        (None, None, "host"),
        (".dockerenv", "0::/", "docker"),
        (None, "4:memory:/docker/0a1b", "docker"),
        ("run/.containerenv", "0::/", "podman"),
        (None, "0::/machine.slice/libpod-0a1b.scope", "podman"),
        ("var/run/secrets/kubernetes.io", "0::/", "kubernetes"),
        (".dockerenv", "11:memory:/kubepods/burstable/pod1/0a1b", "kubernetes"),
    ],
)
def test_marks(tmp_path: Path, mark: str | None, groups: str | None, told: str) -> None:
    root, proc = tmp_path / "root", tmp_path / "proc"
    root.mkdir()
    if mark is not None:
        (root / mark).mkdir(parents=True)
    if groups is not None:
        (proc / "self").mkdir(parents=True)
        (proc / "self/cgroup").write_text(groups + "\n")
    assert surroundings(proc=proc, root=root) == told
