"""Run processes under a hard memory limit, in a control group made for them and removed after.

A child group of the own memory group is made where the file system of control groups is writable
(v1, or v2 where a parent hands the memory controller on); else a systemd scope, where systemd
answers. Processes enter before they exec, so that everything they allocate is charged, and leave
no process or group behind. A process that goes over the limit is killed by the kernel (signal 9).

Limits: v1 does not throttle writers of dirty pages; swap counts towards the limit where the kernel
accounts it. A maker that is itself killed leaves its group, empty once its processes end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import select
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from overspill.errors import UnavailableError
from overspill.linux.cgroups import PROC, MemoryUse, kill_count, memory_directories, read_group
from overspill.linux.peaks import Peaks as Peaks
from overspill.linux.peaks import PeakSampler as PeakSampler

_ENTER = 'echo $$ > "$1" && shift && exec "$@"'
_END_ATTEMPTS = 50
_END_WAIT_MS = 10_000
_SYSTEMD_TIMEOUT_S = 20


class MemoryGroup:
    """A memory group with a hard limit, as a context manager; see `create`.

    Not thread-safe. A forked child must not close it: only the process that made it removes it.

    Attributes:
        limit_bytes: The limit.
        directory: The group's directory; None while a systemd scope has not started.
    """

    def __init__(self, limit_bytes: int, directory: Path | None, *, unit: str | None) -> None:
        self.limit_bytes = limit_bytes
        self.directory = directory
        self._unit = unit
        self._owner = os.getpid()
        self._closed = False

    @classmethod
    def create(cls, limit_bytes: int, *, name_hint: str = "overspill", proc: Path = PROC) -> Self:
        """Make a group with a hard limit on memory and no swap beyond it.

        Args:
            limit_bytes: The limit in bytes; the kernel rounds it down to whole pages.
            name_hint: Start of the group's name; process number and random letters follow.
            proc: Where /proc is.

        Returns:
            The group; close it, or use it in a ``with``.

        Raises:
            UnavailableError: No group can be made here; the message tells each reason.
        """
        name = f"{name_hint}-{os.getpid()}-{secrets.token_hex(4)}"
        reasons = []
        for directories in memory_directories(proc):
            for parent in directories:
                try:
                    return cls(limit_bytes, _made(parent / name, limit_bytes), unit=None)
                except OSError as error:
                    reasons.append(f"{parent}: {error.strerror}")
        reason = _systemd_refusal()
        if reason is None:
            return cls(limit_bytes, None, unit=f"{name}.scope")
        raise UnavailableError(
            f"no memory group can be made: {'; '.join([*reasons, reason])}",
            remedy="run as root, in a delegated control group, or where systemd-run works",
        )

    def command(self, argv: list[str]) -> list[str]:
        """Wrap a command so that its process enters the group before it starts.

        No ``preexec_fn`` is needed, which is unsafe beside threads. A systemd scope takes one
        command at a time.

        Args:
            argv: The command and its arguments.

        Returns:
            The command to start instead; exit status and signals are those of ``argv``.
        """
        if self._unit is None:
            return ["/bin/sh", "-c", _ENTER, "sh", f"{self.directory}/cgroup.procs", *argv]
        scope = ["systemd-run", *_user_option(), "--scope", "--quiet", "--collect"]
        limits = ["-p", f"MemoryMax={self.limit_bytes}", "-p", "MemorySwapMax=0"]
        return [*scope, f"--unit={self._unit}", *limits, "--", *argv]

    def read(self) -> MemoryUse:
        """Read the group's limit and use.

        Raises:
            UnavailableError: The group is gone, or its scope has not started.
        """
        directory = self._located()
        use = None if directory is None else read_group(directory)
        if use is None:
            raise UnavailableError(
                "the memory group cannot be read",
                path=str(self.directory),
                remedy="see that control groups are mounted: `overspill doctor` shows them",
            )
        return use

    def kill_count(self) -> int:
        """How many processes the kernel has killed in this group for going over the limit."""
        directory = self._located()
        return (kill_count(directory) if directory else None) or 0

    def close(self) -> None:
        """Kill what is left in the group, wait until it is gone, and remove the group.

        Raises:
            UnavailableError: Something in it cannot be killed, so that the group stays.
        """
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        if self._unit is not None:
            _systemctl("kill", "--signal=SIGKILL", self._unit)
            _systemctl("stop", self._unit)
        elif self.directory is not None:
            _remove(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _located(self) -> Path | None:
        if self.directory is None and self._unit is not None:
            told = _systemctl("show", "-p", "ControlGroup", "--value", self._unit).strip()
            directory = Path("/sys/fs/cgroup") / told.lstrip("/")
            if told and directory.is_dir():
                self.directory = directory
        return self.directory


def _made(directory: Path, limit_bytes: int) -> Path:
    """Make the group and set its limit, or leave nothing and raise OSError."""
    directory.mkdir()
    try:
        if (directory / "memory.max").exists():
            (directory / "memory.max").write_text(str(limit_bytes))
            _write_if_there(directory / "memory.swap.max", "0")
        elif (directory / "memory.limit_in_bytes").exists():
            (directory / "memory.limit_in_bytes").write_text(str(limit_bytes))
            _write_if_there(directory / "memory.memsw.limit_in_bytes", str(limit_bytes))
        else:
            raise OSError(errno.EOPNOTSUPP, "the memory controller is not handed on to children")
        if not os.access(directory / "cgroup.procs", os.W_OK):
            raise OSError(errno.EACCES, "processes cannot be moved into a child group")
    except OSError:
        directory.rmdir()
        raise
    return directory


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)


def _remove(directory: Path) -> None:
    """Kill and wait until the group can be removed; sub-groups first."""
    for child in sorted(directory.glob("*/")):
        _remove(child)
    for _ in range(_END_ATTEMPTS):  # a process may fork between being listed and being killed
        _end_all(directory)
        try:
            directory.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise _kept(directory, error) from error
            refusal = error
    raise _kept(directory, refusal)


def _kept(directory: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"the memory group cannot be removed: {error.strerror}",
        path=str(directory),
        errno=error.errno,
        remedy="end the processes listed in its cgroup.procs, then remove the directory",
    )


def _end_all(directory: Path) -> None:
    with contextlib.ExitStack() as opened:
        poll = select.poll()
        waiting = 0
        for pid in _members(directory):
            try:
                fd = os.pidfd_open(pid)
            except OSError:  # gone already
                continue
            opened.callback(os.close, fd)
            # The number may have been taken over since it was listed: the descriptor pins the
            # process, and only then is its membership checked.
            if pid in _members(directory):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                poll.register(fd, select.POLLIN)
                waiting += 1
        while waiting:
            ended = poll.poll(_END_WAIT_MS)
            if not ended:
                return
            for fd, _ in ended:
                poll.unregister(fd)
            waiting -= len(ended)


def _members(directory: Path) -> list[int]:
    try:
        return [int(word) for word in (directory / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _systemd_refusal() -> str | None:
    if shutil.which("systemd-run") is None or shutil.which("systemctl") is None:
        return "systemd-run is not installed"
    argv = ["systemd-run", *_user_option(), "--scope", "--quiet", "--collect", "--", "true"]
    try:
        tried = subprocess.run(
            argv, capture_output=True, text=True, timeout=_SYSTEMD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"systemd-run: {error}"
    return None if tried.returncode == 0 else f"systemd-run: {tried.stderr.strip()}"


def _systemctl(*arguments: str) -> str:
    try:
        return subprocess.run(
            ["systemctl", *_user_option(), *arguments],
            capture_output=True,
            text=True,
            timeout=_SYSTEMD_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _user_option() -> tuple[str, ...]:
    return () if os.geteuid() == 0 else ("--user",)
