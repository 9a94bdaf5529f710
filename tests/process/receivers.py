"""What the child processes of these tests run; importable, so that spawn and forkserver find it.

Nothing here imports overspill: a receiver learns of it by unpickling alone.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch


def described(tensor: torch.Tensor) -> dict[str, Any]:
    """What a receiver got, as plain values."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    raw = torch.empty(0, dtype=torch.uint8)
    raw.set_(
        plain.untyped_storage(),
        plain.storage_offset() * plain.element_size(),
        (plain.numel() * plain.element_size(),),
    )
    return {
        "pid": os.getpid(),
        "type": type(tensor).__name__,
        "shape": tuple(tensor.shape),
        "stride": tensor.stride(),
        "offset": tensor.storage_offset(),
        "dtype": str(tensor.dtype),
        "grad": tensor.requires_grad,
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
        "filename": tensor.untyped_storage().filename,
        "bytes": hashlib.sha256(raw.numpy().tobytes()).hexdigest(),
        "base": tensor.untyped_storage().data_ptr(),
    }


def mappings_of(path: str) -> int:
    """How many mappings of a file this process has."""
    return sum(line.endswith(path) for line in Path("/proc/self/maps").read_text().splitlines())


def answer(received: Any, answers: Any) -> None:
    """Take one message, of tensors or of handles, and say what it was."""
    try:
        got = received.get() if hasattr(received, "get") else received.recv()
        tensors = [one.open() if hasattr(one, "open") else one for one in got]
        files = {tensor.untyped_storage().filename for tensor in tensors} - {None}
        maps = {path: mappings_of(path) for path in files}
        answers.put(("got", [described(tensor) for tensor in tensors], maps))
    except (OSError, TypeError) as error:
        answers.put(("error", type(error).__name__, str(error)))


def keep_answering(received: Any, answers: Any) -> None:
    """Take one message after the other, until the process is killed."""
    while True:
        answer(received, answers)


class Message:
    """What a queue would have given."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def get(self) -> Any:
        return self.held


def answer_arguments(answers: Any, *tensors: torch.Tensor) -> None:
    """Say what came with the start of the process."""
    answer(Message(tensors), answers)


def write_first(received: Any, done: Any) -> None:
    received.get()[0][0] = 77
    done.put(None)


def echo(received: Any, answers: Any) -> None:
    """Send back what came."""
    answers.put(received.get())
    received.get()  # stays until it is told to go


def produce(values: int, answers: Any) -> None:
    """Spill a tensor, hand it over and exit."""
    import overspill as ov

    tensor = ov.spill_tensor_to_disk(torch.arange(values), required=True)
    answers.put([tensor, ov.handle(tensor)])


def produce_into(table: Any, name: str, values: int) -> None:
    import overspill as ov

    table[name] = ov.spill_tensor_to_disk(torch.arange(values), required=True)


def count(handles: Any, answers: Any, limit: int) -> None:
    """Open thousands of tensors under a low limit on descriptors."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    total = sum(int(tensor[0]) for tensor in handles.get())
    answers.put((total, len(list(Path("/proc/self/fd").iterdir()))))


def first_of(tensor: torch.Tensor) -> tuple[int, bool]:
    """For a pool."""
    return int(tensor[0]), tensor.untyped_storage().filename is not None


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows of a tensor that its workers must not copy."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, bool]:
        return self.rows[index].clone(), self.rows.untyped_storage().filename is not None


class Marked(torch.Tensor):
    """A subclass without anything of its own."""
