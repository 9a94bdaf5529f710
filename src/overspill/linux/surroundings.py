"""Whether this process runs in a container, and whose: where its limits were set, and are raised.

A hint for messages and nothing more: the marks are files and names that anybody could make.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

PROC = Path("/proc")
Surroundings = Literal["kubernetes", "docker", "podman", "host"]


def surroundings(*, proc: Path = PROC, root: Path = Path("/")) -> Surroundings:
    """Name what this process runs in; "host" where nothing tells.

    Args:
        proc: Where /proc is.
        root: Where the root directory is.
    """
    try:
        groups = (proc / "self" / "cgroup").read_text(errors="replace")
    except OSError:
        groups = ""
    # Before docker: a pod's containers may carry Docker's mark too.
    if "kubepods" in groups or (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if (root / ".dockerenv").exists() or "/docker" in groups:
        return "docker"
    if (root / "run/.containerenv").exists() or "/libpod" in groups or "libpod-" in groups:
        return "podman"
    return "host"
