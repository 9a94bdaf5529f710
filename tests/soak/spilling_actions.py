"""Actions on tensors: spilled, allocated in place, grown, handed over, collated; read back whole.

Every tensor holds a pattern that its number gives, so that bytes of another one, or of a hole in a
file, show.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import multiprocessing
from torch.utils.data import DataLoader, Dataset

import overspill as ov
from soak.actors import ViolationError
from soak.stage import Stage

_SIZES = (1 << 10, 100_003, 1 << 20, 3 << 20)  # of int32 elements: up to 12 MiB
_END_S = 60
_ITEMS = 8


def pattern(number: int, length: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """int32 values that tell the tensor and the place, of less than two equal ones in a row."""
    made = torch.arange(number, number + length, dtype=torch.int32, out=out)
    return made.mul_(2654435761 % (1 << 31))


def require_pattern(tensor: torch.Tensor, number: int, what: str) -> int:
    """Hold a tensor against its pattern; its bytes."""
    if not torch.equal(tensor, pattern(number, tensor.numel())):
        raise ViolationError(f"{what}: {tensor.numel()} elements are not those of {number}")
    return tensor.nbytes


def spill(stage: Stage, chance: Random) -> dict[str, int]:
    """Spill, release and read again, by the tensor and by a handle; give some back early."""
    ov.prepare_spill_dir()
    held: list[tuple[int, torch.Tensor]] = []
    total = 0
    for number in range(chance.randint(3, 8)):
        spilled = ov.spill_tensor_to_disk(pattern(number, chance.choice(_SIZES[1:])), required=True)
        assert spilled is not None and ov.is_disk_backed(spilled)
        held.append((number, spilled))
        ov.release_page_cache(spilled)
        total += require_pattern(ov.handle(spilled).open(), number, "by its handle")
        if chance.random() < 0.4:
            ov.discard(held.pop(chance.randrange(len(held)))[1])
    with ov.spill_scope():
        total += _allocated(chance)
    for number, tensor in held:
        total += require_pattern(tensor, number, "spilled")
    return {"bytes spilled": total}


def _allocated(chance: Random) -> int:
    length = chance.choice(_SIZES[1:])
    made = ov.allocate_disk_backed((length,), torch.int32, required=True)
    assert made is not None
    pattern(77, length, out=made)
    ov.release_page_cache(made)
    return require_pattern(made, 77, "allocated on disk")


def preshare(stage: Stage, chance: Random) -> dict[str, int]:
    """Allocate in the final home, write, share in place, and let a child read it."""
    total = 0
    for number in range(chance.randint(2, 5)):
        made = ov.allocate_preshared(
            (chance.choice(_SIZES),), torch.int32, random_access=chance.random() < 0.5
        )
        pattern(number, made.numel(), out=made)
        ov.share_memory(made)
        total += _read_by_child({"made": made}, number)
    return {"bytes shared": total}


def hand_over(stage: Stage, chance: Random) -> dict[str, int]:
    """A mapping of tensors, large ones spilled and small ones shared, read by a child."""
    number = chance.randrange(1000)
    names = [str(place) for place in range(chance.randint(2, 5))]
    tensors = {name: pattern(number, chance.choice(_SIZES)) for name in names}
    sent = ov.share_memory_for_ipc(tensors)
    del tensors
    return {"bytes shared": _read_by_child(sent, number)}


def grow(stage: Stage, chance: Random) -> dict[str, int]:
    """Chunks grown into one tensor in its final home, the list consumed."""
    lengths = [chance.choice(_SIZES[:3]) for _ in range(chance.randint(3, 8))]
    whole = pattern(3, sum(lengths))
    chunks = [(part.clone(),) for part in whole.split(lengths)]
    del whole
    (grown,) = ov.concatenate_chunks(chunks)
    return {"bytes shared": require_pattern(grown, 3, "grown") if not chunks else 0}


class Items(Dataset[torch.Tensor]):
    """Items of 6 MiB, four of which fill /dev/shm."""

    def __len__(self) -> int:
        return _ITEMS

    def __getitem__(self, index: int) -> torch.Tensor:
        return pattern(index, 3 << 19)


def collate(stage: Stage, chance: Random) -> dict[str, int]:
    """torch's own loader with batches larger than /dev/shm takes."""
    total = 0
    with ov.spill_batches():
        loader = DataLoader(Items(), batch_size=2, num_workers=chance.choice([1, 2]))
        for number, batch in enumerate(loader):
            for place in (0, 1):
                total += require_pattern(batch[place], 2 * number + place, "collated")
    return {"bytes shared": total}


def _read_by_child(tensors: dict[str, torch.Tensor | None], number: int) -> int:
    """What a forked child reads; EOFError or a broken pipe where it was killed."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_read, args=(here, there, number), daemon=True)
    child.start()
    there.close()
    try:
        here.send(tensors)
        if not here.poll(_END_S):
            raise ViolationError("a child neither answered nor ended")
        told = here.recv()
    finally:
        here.close()
        child.join(_END_S)
    if isinstance(told, BaseException):
        raise told
    return int(told)


def _read(theirs: Any, own: Any, number: int) -> None:
    theirs.close()
    try:
        tensors = own.recv()
        told: Any = sum(require_pattern(one, number, "received") for one in tensors.values())
    except (ov.OverspillError, ViolationError) as error:
        told = error
    own.send(told)
