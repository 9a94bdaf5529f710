"""What is looked at after each round: nothing leaked, every dataset whole or openly unfinished.

Runs in the supervisor, once no action runs and the command has cleaned the spill directory.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import overspill as ov
from overspill.cli.holdings import is_partition
from overspill.errors import FormatError, OverspillError
from overspill.storage.checksums import verify_checksums
from overspill.storage.manifest import MANIFEST_NAME, UNFINISHED_NAME, read_manifest
from overspill.storage.partition_manifest import PARTITION_NAME, read_partition
from soak.stage import Stage, run, shm_names, used_bytes

# Workers of torch look for their parent every five seconds.
_END_MS = 40_000
# Counters of a group are kept by processor, in batches of pages.
_ANON_SLACK_BYTES = 2 << 20
_DISK_SLACK_BYTES = 1 << 20
_TORCH_NAME = re.compile(r"torch_(\d+)_")
# A lock of multiprocessing's: glibc's name until it is whole, then Python's until it is unlinked.
_LOCK_NAME = re.compile(r"sem\.(\w{6}|mp-\w+)")

Digests = Mapping[str, str]


@dataclass
class Output:
    """A directory that actions build into: what it will hold, and what stands there now.

    Attributes:
        kind: "build" or "partition".
        recipe: Which, and so which digests its files must have.
        told: How its last action ended.
        state: "absent", "unfinished" or "finished", as the last inspection found.
    """

    kind: str
    recipe: str
    told: str = "new"
    state: str = "absent"


@dataclass
class Before:
    """What the stage and the supervisor held before anything was played."""

    books_bytes: int
    descriptors: frozenset[str]
    shm: frozenset[str] = field(default_factory=lambda: frozenset(p.name for p in shm_names()))

    @classmethod
    def of(cls, stage: Stage) -> Before:
        return cls(_books_bytes(stage), _descriptors())


def processes_left(stage: Stage) -> list[str]:
    """What lives in the group once it has had the time to see that its parent is gone."""
    with ExitStack() as opened:
        poll, waiting = select.poll(), set[int]()
        for pid in stage.members():
            with suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                opened.callback(os.close, fd)
                poll.register(fd, select.POLLIN)
                waiting.add(fd)
        while waiting and (ended := poll.poll(_END_MS)):
            for fd, _ in ended:
                poll.unregister(fd)
                waiting.discard(fd)
    left = [(pid, _command_of(pid)) for pid in stage.members()]
    return [f"process {pid} outlived its parents: {command}" for pid, command in left]


def inspect(
    stage: Stage,
    before: Before,
    outputs: Mapping[str, Output],
    digests: Mapping[str, Digests],
    killed: set[int],
) -> list[str]:
    """Every violation that the stage shows; the states of the outputs are brought up to date.

    Args:
        stage: Where no action runs any more.
        before: What was there at first.
        outputs: Every directory of the stage's data, by name.
        digests: By recipe, of every array file.
        killed: Processes that the killer ended.
    """
    return [
        *shared_memory_left(before, killed),
        *memory_left(stage),
        *(f"a dead run's {path} was not cleaned" for path in sorted(stage.spill.iterdir())),
        *outputs_wrong(stage, outputs, digests),
        *strays(stage, outputs),
        *_disk_left(stage, before),
        *(f"the supervisor holds {one}" for one in sorted(_descriptors() - before.descriptors)),
    ]


def shared_memory_left(before: Before, killed: set[int]) -> Iterator[str]:
    """Names in /dev/shm; those that a kill explains, between two calls of others, are removed."""
    for path in shm_names():
        owner = _TORCH_NAME.match(path.name)
        lock = killed and _LOCK_NAME.fullmatch(path.name)
        if lock or (owner is not None and int(owner[1]) in killed):
            path.unlink()
        elif path.name not in before.shm:
            yield f"{path} was left in shared memory"


def memory_left(stage: Stage) -> Iterator[str]:
    """Memory that nobody owns any more, and processes that the kernel killed for want of it."""
    use = stage.group.read()
    for kind, held in (("anonymous", use.anon_bytes), ("shared", use.shmem_bytes)):
        if held > _ANON_SLACK_BYTES:
            yield f"{held} bytes of {kind} memory are still charged to the empty group"
    if stage.group.kill_count():
        yield f"the kernel killed {stage.group.kill_count()} processes for want of memory"


def outputs_wrong(
    stage: Stage, outputs: Mapping[str, Output], digests: Mapping[str, Digests]
) -> Iterator[str]:
    """Hold each directory against what it must hold, or how it must refuse."""
    for name, output in outputs.items():
        path = stage.data / name
        if not path.exists():
            output.state = "absent"
        elif (path / MANIFEST_NAME).exists() or is_partition(path):
            output.state = "finished"
            yield from _finished_wrong(path, output, digests[output.recipe])
        else:
            output.state = "unfinished"
            yield from _unfinished_wrong(path, output)
        if output.told == "done" and output.state != "finished":
            yield f"{path} is {output.state}, and its {output.kind} said that it was done"


def digests_of(path: Path) -> dict[str, str]:
    """Every array file of a dataset, or of a partition and its parts, with its digest.

    Raises:
        FormatError: A file is not as recorded.
    """
    held = [(path, read_partition(path) if is_partition(path) else read_manifest(path))]
    if is_partition(path):
        held += [(path / part.path, read_manifest(path / part.path)) for part in held[0][1].parts]
    found = {}
    for place, manifest in held:
        for problem in verify_checksums(place, manifest):
            raise FormatError(f"{problem.path}: {problem.reason}", path=problem.path)
        prefix = place.relative_to(path)
        found.update({str(prefix / record.path): record.sha256 for record in manifest.files()})
    return found


def _finished_wrong(path: Path, output: Output, wanted: Digests) -> Iterator[str]:
    try:
        found = digests_of(path)
    except OverspillError as error:
        yield f"{path} does not verify: {type(error).__name__}: {error}"
        return
    for name in sorted(found.items() ^ wanted.items()):
        yield f"{path} differs from a {output.recipe} built in peace: {name}"
    files = {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()}
    own = {one for one in files if Path(one).name in (MANIFEST_NAME, PARTITION_NAME)}
    if output.told != "done":  # killed after it had published: the mark goes with the next build
        own |= {one for one in files if Path(one).name == UNFINISHED_NAME}
    for one in sorted(files - own - set(found)):
        yield f"{path} holds {one}, which its manifest does not name"


def _unfinished_wrong(path: Path, output: Output) -> Iterator[str]:
    opened = ov.open_dataset if output.kind == "build" else ov.open_partition
    try:
        opened(path)
    except FormatError:
        return
    except OverspillError as error:
        yield f"{path} is unfinished and refused by {type(error).__name__}: {error}"
        return
    yield f"{path} is unfinished and opened as data"


def strays(stage: Stage, outputs: Mapping[str, Output]) -> Iterator[str]:
    """What lies where nobody was told to put anything."""
    known = {stage.spill, stage.data, stage.packs, *(stage.data / name for name in outputs)}
    found = [*stage.disk.iterdir(), *stage.data.iterdir()]
    yield from (f"{path} belongs to nothing" for path in sorted(found) if path not in known)
    for path in sorted(stage.tmp.iterdir()):
        if "overspill" in path.name:
            yield f"{path} was left in the temporary directory"


def _disk_left(stage: Stage, before: Before) -> Iterator[str]:
    lost = _books_bytes(stage) - before.books_bytes
    if abs(lost) > _DISK_SLACK_BYTES:
        yield f"{lost} bytes of the disk are taken by no file that has a name"


def _books_bytes(stage: Stage) -> int:
    """What the disk holds beside its files: the file system's own, and files without a name."""
    run(["sync", "-f", str(stage.disk)])
    blocks = sum(path.lstat().st_blocks for path in stage.disk.rglob("*"))
    return used_bytes(stage.disk) - 512 * blocks


def _descriptors() -> frozenset[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing
            found.add(f"{entry.name} -> {entry.readlink()}")
    return frozenset(found)


def _command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return "(it has just ended)"
    return words.decode(errors="replace").strip()
