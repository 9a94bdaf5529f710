"""A Ray node as if on a machine of its own, for tests: all that tells machines apart differs.

Its processes have mounts, process numbers, a host name and a boot id of their own, and may lie in a
memory group; directories of its own stand at paths that exist here too. Needs root.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from overspill.linux.confine import MemoryGroup

# hostname, boot id, then pairs of (own directory, the path it stands at), "--", the command.
_ENTER = """
hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id && shift 2 || exit
while [ "$1" != -- ]; do mount --bind "$1" "$2" && shift 2 || exit; done
shift
exec "$@"
"""
_ALONE = ["--mount", "--uts", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"]


class OtherMachine:
    """A node, started at once; `kill` is a power cut: none of its processes lives on.

    A context manager, which ends with one.

    Args:
        address: The cluster's.
        ip: Its own, on loopback; not 127.0.0.1.
        place: An empty directory for what it needs.
        own: Directories of its own, by the path they stand at.
        limit_bytes: A limit on its memory.

    Attributes:
        identity: How `host_identity` names it.
    """

    def __init__(
        self,
        address: str,
        ip: str,
        place: Path,
        *,
        own: Mapping[Path, Path] | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        name, boot = f"machine-{ip.rpartition('.')[2]}", str(uuid.uuid4())
        self.identity = f"{name}/{boot}"
        (place / "boot_id").write_text(f"{boot}\n")
        # Ray's directory too: nodes that share it race for the names of their sockets.
        (place / "ray").mkdir(exist_ok=True)
        own = {Path(os.environ["RAY_TMPDIR"]): place / "ray", **(own or {})}
        mounts = [str(part) for at, held in own.items() for part in (held, at)]
        argv = ["unshare", *_ALONE, "/bin/sh", "-c", _ENTER, "sh", name, str(place / "boot_id")]
        argv += [*mounts, "--", *_start_command(address, ip)]
        self._group = None
        if limit_bytes is not None:
            self._group = MemoryGroup.create(limit_bytes, name_hint="overspill-test")
            argv = self._group.command(argv)
        with (place / "output").open("wb") as output:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> OtherMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to one of its processes, by the number that it has there."""
        (init,) = (
            Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        )
        space = Path(f"/proc/{init}/ns/pid").readlink()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # ended meanwhile
                told = re.search(r"^NSpid:.*\t(\d+)$", (place / "status").read_text(), re.MULTILINE)
                if told and int(told[1]) == pid and (place / "ns/pid").readlink() == space:
                    os.kill(int(place.name), number)
                    return
        raise ProcessLookupError(f"{self.identity} has no process {pid}")

    def kill(self) -> None:
        """End it; nothing is left once this returns. A second call does nothing."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._group is not None:
            self._group.close()


def _start_command(address: str, ip: str) -> list[str]:
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    sizes = ["--num-cpus=1", f"--object-store-memory={80 << 20}"]
    return [*ray, f"--address={address}", f"--node-ip-address={ip}", *sizes]
