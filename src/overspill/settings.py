"""The settings in force: argument over context manager over environment over default.

This is the only module that reads ``os.environ``. Settings are read at each use and never frozen at
import, because a process may learn its spill directory after it imported Overspill.
"""

from __future__ import annotations

import os
import site
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from overspill.errors import SettingsError
from overspill.units import parse_bytes

# GiGL's names are honoured where ours are unset, so that a GiGL deployment moves over unchanged.
_VARIABLES: dict[str, tuple[str, ...]] = {
    "spill_dir": ("OVERSPILL_DIR", "GIGL_TENSOR_SPILL_DIR"),
    "min_bytes": ("OVERSPILL_MIN_BYTES", "GIGL_TENSOR_SPILL_MIN_BYTES"),
    "random_access_reserve_bytes": (
        "OVERSPILL_RANDOM_ACCESS_RESERVE_BYTES",
        "GIGL_RANDOM_ACCESS_HEADROOM_RESERVE_BYTES",
    ),
    "shm_reserve_bytes": ("OVERSPILL_SHM_RESERVE_BYTES",),
    "disk_limit_bytes": ("OVERSPILL_DISK_LIMIT",),
    "memory_limit_bytes": ("OVERSPILL_MEMORY_LIMIT",),
    "spill_batches": ("OVERSPILL_SPILL_BATCHES",),
    "allow_cow_disk": ("OVERSPILL_ALLOW_COW_DISK",),
}
_FLAGS = {"1": True, "true": True, "yes": True, "on": True}
_FLAGS |= {"0": False, "false": False, "no": False, "off": False}
RUN_VARIABLE = "OVERSPILL_RUN"
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is in force now; None means "derive it from what is measured".

    Attributes:
        spill_dir: Where spill files go, absolute; None turns spilling off.
        min_bytes: Tensors smaller than this are not spilled.
        random_access_reserve_bytes: Memory left free beside a randomly written tensor, and beside a
            loader.
        shm_reserve_bytes: Room left free in /dev/shm.
        disk_limit_bytes: The most that the spill files of one run and its batches in files may hold
            together, over all its processes.
        memory_limit_bytes: The most anonymous and shared memory that a process which plans, with
            the workers it starts, may come to; what it holds already counts. For a build, the
            memory of its own process.
        spill_batches: Whether DataLoader batches that do not fit /dev/shm go through files.
        allow_cow_disk: Whether a copy-on-write disk, whose reservations may fail, is accepted.
    """

    spill_dir: Path | None = None
    min_bytes: int | None = None
    random_access_reserve_bytes: int | None = None
    shm_reserve_bytes: int | None = None
    disk_limit_bytes: int | None = None
    memory_limit_bytes: int | None = None
    spill_batches: bool = False
    allow_cow_disk: bool = False


def current_settings() -> Settings:
    """Read the settings in force from the environment.

    A relative directory means the one beneath the working directory at the first reading, which
    makes the variable absolute: for later readings, and for child processes.

    Returns:
        A frozen snapshot; a later change of the environment does not reach it.

    Raises:
        SettingsError: A variable cannot be understood; the message names it.
    """
    held: dict[str, Path | int | bool] = {}
    for field in fields(Settings):
        for variable in _VARIABLES[field.name]:
            text = os.environ.get(variable, "").strip()
            if text:  # empty means unset, so that a container can blank an inherited variable
                value = held[field.name] = _understood(field.name, variable, text)
                if isinstance(value, Path) and not Path(text).expanduser().is_absolute():
                    os.environ[variable] = str(value)
                break
    return Settings(**held)  # type: ignore[arg-type]


@contextmanager
def settings(**overrides: str | int | bool | Path | None) -> Iterator[Settings]:
    """Override settings for a span, exported to the environment so that child processes see them.

    The environment belongs to the whole process: overlapping spans in different threads see each
    other's values. On leaving, each overridden variable is restored to what it was.

    Args:
        **overrides: Fields of `Settings`; sizes may be written "2GiB"; None unsets a field.

    Yields:
        The settings in force within the span.

    Raises:
        SettingsError: An unknown name, or a value that cannot be understood.
    """
    wanted: dict[str, str] = {}
    for name, value in overrides.items():
        if name not in _VARIABLES:
            raise SettingsError(
                f"no setting is called {name!r}", remedy=f"one of {', '.join(_VARIABLES)}"
            )
        variables = _VARIABLES[name]
        text = "" if value is None else _exported(value)
        if text:
            text = _exported(_understood(name, variables[0], text))
        # The fallback names are blanked too: "None" must not uncover a GiGL variable beneath.
        wanted |= {variables[0]: text, **dict.fromkeys(variables[1:], "")}
    before = {variable: os.environ.get(variable) for variable in wanted}
    os.environ.update(wanted)
    try:
        yield current_settings()
    finally:
        for variable, old in before.items():
            if old is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = old


def size_bytes(name: str, size: str | int) -> int:
    """A size as people write it, given by the argument or variable `name` (SettingsError)."""
    try:
        return parse_bytes(size)
    except (ValueError, TypeError) as error:
        raise SettingsError(
            f"{name}={size!r} is not a size", remedy='write it like "2GiB" or 1073741824'
        ) from error


def inherited_run() -> str | None:
    """The run directory that a parent process exported, or None."""
    return os.environ.get(RUN_VARIABLE) or None


def export_run(run_dir: str | None) -> None:
    """Export a run directory to the processes started from here on; None takes it back."""
    if run_dir is None:
        os.environ.pop(RUN_VARIABLE, None)
    else:
        os.environ[RUN_VARIABLE] = run_dir


def openmp_threads() -> int | None:
    """How many threads OMP_NUM_THREADS asks torch for; None where it does not, or is no number."""
    # A list of numbers has one for each level of nesting; the first is that of the outermost.
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(text) if text.isascii() and text.isdigit() else None


def child_environment(**extra: str) -> dict[str, str]:
    """The environment for a child interpreter that must import this very package.

    Args:
        **extra: Variables to add.

    Returns:
        A copy of the environment, this package's root first on PYTHONPATH unless the child finds
        it anyway: the parent may have found it through ``sys.path`` alone. A directory of installed
        packages is not put there, where it would come before the standard library.
    """
    root, known = str(_ROOT), os.environ.get("PYTHONPATH", "")
    if _is_installed(_ROOT):
        return {**os.environ, **extra}
    path = os.pathsep.join(part for part in (root, known) if part)
    return {**os.environ, "PYTHONPATH": path, **extra}


def _is_installed(root: Path) -> bool:
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return any(Path(place).resolve() == root for place in [*site.getsitepackages(), *users])


def _exported(value: str | int | bool | Path) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _absolute(variable: str, text: str) -> Path:
    try:
        os.fsencode(text)
        if "\0" in text:
            raise ValueError("no path holds a NUL byte")
        return Path(os.path.abspath(Path(text).expanduser()))  # noqa: PTH100
    except (RuntimeError, OSError, ValueError) as error:
        # No such user; the working directory is gone; what no name can have.
        raise SettingsError(
            f"{variable}={text!r} leads to no directory: {error}", remedy="write its whole path"
        ) from error


def _understood(name: str, variable: str, text: str) -> Path | int | bool:
    if name == "spill_dir":
        return _absolute(variable, text)
    if name in ("spill_batches", "allow_cow_disk"):
        flag = _FLAGS.get(text.lower())
        if flag is None:
            raise SettingsError(
                f"{variable}={text!r} is not a switch", remedy="write 1 or 0, or leave it empty"
            )
        return flag
    return size_bytes(variable, text)
