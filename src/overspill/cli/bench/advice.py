"""What follows from the figures: findings, each with something to do; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from overspill.cli.bench.figures import Figure
from overspill.cli.read_ahead_window import GOOD_BYTES, window_command, window_fault
from overspill.units import format_bytes

_MIB = 1 << 20
SLOW_WRITE_BYTES, SLOW_READS = 100 * _MIB, 3000
# The share of what was written that turned up in memory as shared memory.
DISGUISED_SHARE = 0.75
# What advice is about that finds no fault with this machine.
BUSY, LEFT = "machine", "leftovers"
BUSY_LOAD, UNSTEADY = 0.75, 2.0
_LITTLE_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the figures depend on besides Overspill.

    Attributes:
        file_system: Its type.
        read_ahead_bytes: The device's window; None where it is not told.
        read_ahead_setting: The file that holds it.
        direct: Whether the file system has direct I/O.
        asynchronous: Whether random reads went through the kernel's queue, not through threads.
        memory_share: Of what was just written, twice, the share by which the machine's shared
            memory grew both times.
        load_per_cpu: Processes that ran or waited when the bench began, for each CPU.
        cpus: That may be used.
        available_bytes: Memory that may be used.
        fetch_method: How pages are asked for ahead of their use.
    """

    file_system: str
    read_ahead_bytes: int | None
    read_ahead_setting: str | None
    direct: bool
    asynchronous: bool
    memory_share: float
    load_per_cpu: float
    cpus: int
    available_bytes: int
    fetch_method: str


@dataclass(frozen=True)
class Advice:
    """A finding and what to do about it.

    Attributes:
        about: What it is about, a word: "memory", "disk", "machine", or a figure's name.
        finding: One sentence.
        remedy: What to do, to be pasted where it is a command.
    """

    about: str
    finding: str
    remedy: str


def advised(figures: Mapping[str, Figure], around: Conditions) -> list[Advice]:
    """Say what is wrong, what weighs most first; nothing where all is well."""
    if around.memory_share >= DISGUISED_SHARE:
        # Nothing else that was measured is about a disk.
        return [_disguise(around)]
    causes = [*_slow_disk(figures), *_busy(figures, around)]
    return [*causes, *_poor(figures, around, explained=bool(causes))]


def _disguise(around: Conditions) -> Advice:
    return Advice(
        "memory",
        f"this {around.file_system} seems to keep its files in memory, which count against the "
        "memory limit: the machine's shared memory grew with what was written, twice",
        "choose a directory on a disk: overspill bench --dir DIR, and OVERSPILL_DIR=DIR; or, if "
        "another program filled /dev/shm meanwhile, overspill bench again without it",
    )


def _slow_disk(figures: Mapping[str, Figure]) -> Iterator[Advice]:
    write, reads = figures.get("sequential_write"), figures.get("random_reads")
    if write is not None and write.per_second.median < SLOW_WRITE_BYTES:
        yield Advice(
            "disk",
            f"the disk takes {format_bytes(int(write.per_second.median))}/s: spilling and building "
            "wait for it",
            "use a local SSD where there is one: --dir DIR on it, and OVERSPILL_DIR=DIR",
        )
    if reads is not None and reads.per_second.median < SLOW_READS:
        yield Advice(
            "disk",
            f"the disk does {reads.per_second.median:,.0f} random reads a second, as spinning and "
            "network disks do: gathering rows waits for it",
            "use a local SSD; else read in order: loaders with pack=DIR, lookahead=20 or "
            'hot_rows="1GiB", datasets with --order degree',
        )


def _busy(figures: Mapping[str, Figure], around: Conditions) -> Iterator[Advice]:
    unsteady = [
        figure.kind.shown
        for figure in figures.values()
        # Round trips take microseconds: on a quiet machine too they differ by half.
        if figure.kind.measured
        and figure.kind.unit != "messages"
        and figure.per_second.unsteadiness > UNSTEADY
    ]
    if around.load_per_cpu > BUSY_LOAD:
        found = (
            f"the machine was busy before the bench began (load {around.load_per_cpu:.1f} a CPU)"
        )
    elif unsteady:
        found = f"the limits changed from round to round ({', '.join(unsteady)})"
    else:
        return
    yield Advice(
        BUSY,
        f"{found}: the figures tell of other programs too",
        "stop them or wait, then: overspill bench",
    )


def _poor(
    figures: Mapping[str, Figure], around: Conditions, *, explained: bool
) -> Iterator[Advice]:
    for name, figure in figures.items():
        if not figure.is_poor:
            continue
        why = _CAUSES[name](around)
        if why is None and explained:
            continue
        ratio = figure.ratio.median if figure.ratio is not None else 0.0
        finding, remedy = why or (
            "nothing that was looked at explains it",
            "look for other limits (I/O quotas, a throttled volume), and report it",
        )
        yield Advice(
            name, f"{figure.kind.shown} reaches {ratio:.2f} of its limit: {finding}", remedy
        )


def _spill(around: Conditions) -> tuple[str, str] | None:
    if not around.direct:
        return (
            f"{around.file_system} has no direct I/O here, so every byte goes through the page "
            "cache",
            "choose a directory on ext4 or xfs with --dir",
        )
    return _little_memory(around) or _few_cpus(around)


def _mapped(around: Conditions) -> tuple[str, str] | None:
    held, setting = around.read_ahead_bytes, around.read_ahead_setting
    if held is not None and setting is not None and held < GOOD_BYTES:
        why = window_fault(held, slow_in_order=True)
        return f"the kernel reads only {format_bytes(held)} ahead. {why}", window_command(setting)
    return _little_memory(around)


def _gather(around: Conditions) -> tuple[str, str] | None:
    if around.fetch_method != "process_madvise":
        return (
            f"pages are asked for one by one ({around.fetch_method}), as process_madvise is not "
            "allowed",
            "allow it: Linux 5.10 or later, and in a container --cap-add SYS_NICE or a seccomp "
            "profile with process_madvise",
        )
    if around.read_ahead_bytes == 0 and around.read_ahead_setting is not None:
        return (
            "read-ahead is switched off, and requests for pages with it",
            window_command(around.read_ahead_setting),
        )
    return _little_memory(around) or _few_cpus(around)


def _hand_over(around: Conditions) -> tuple[str, str] | None:
    return _few_cpus(around)


def _build(around: Conditions) -> tuple[str, str] | None:
    return _little_memory(around) or _few_cpus(around)


def _little_memory(around: Conditions) -> tuple[str, str] | None:
    if around.available_bytes >= _LITTLE_MEMORY_BYTES:
        return None
    return (
        f"only {format_bytes(around.available_bytes)} of memory is left, and the kernel drops "
        "pages as fast as they come",
        "end what holds the memory, or raise the container's limit; overspill doctor tells who "
        "holds it",
    )


def _few_cpus(around: Conditions) -> tuple[str, str] | None:
    if around.cpus > 1:
        return None
    return (
        "one CPU does all the work, of the kernel and of other programs too",
        "give the container 2 CPUs or more (docker run --cpus 2)",
    )


_CAUSES = {
    "spill": _spill,
    "mapped_read": _mapped,
    "gather": _gather,
    "hand_over": _hand_over,
    "build": _build,
}
