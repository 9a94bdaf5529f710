"""How much of a disk-backed tensor is in memory, told by the kernel without touching a page."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from overspill.errors import UnsupportedTensorError
from overspill.linux.pages import resident_bytes
from overspill.tensors.backing import file_behind
from overspill.units import format_bytes


@dataclass(frozen=True)
class Residency:
    """What of a tensor is in memory.

    Attributes:
        resident_bytes: Bytes in memory, whoever brought them there.
        total_bytes: Bytes from the first element to the last.
    """

    resident_bytes: int
    total_bytes: int

    @property
    def share(self) -> float:
        """The resident share, 0 to 1; 1 where there are no bytes."""
        return self.resident_bytes / self.total_bytes if self.total_bytes else 1.0

    def __str__(self) -> str:
        held, total = format_bytes(self.resident_bytes), format_bytes(self.total_bytes)
        return f"{held} of {total} in memory ({self.share:.0%})"


def residency(tensor: torch.Tensor) -> Residency:
    """Count the bytes of a disk-backed tensor that are in memory, by mincore(2).

    Touches no page. 2 to 3 ms a GiB. Of a view with gaps the gaps count too: pages hold both.

    Args:
        tensor: A disk-backed tensor or a view of one.

    Returns:
        Resident and total bytes. For a file that this user neither owns nor may write, the kernel
        tells nothing and every page counts as resident.

    Raises:
        UnsupportedTensorError: It is not disk-backed.
        MappingError: The kernel refused to tell.
    """
    if not isinstance(tensor, torch.Tensor) or file_behind(tensor) is None:
        raise UnsupportedTensorError(
            "only a disk-backed tensor has a residency",
            remedy="ask overspill.is_disk_backed(t) first",
        )
    if tensor.numel() == 0:
        return Residency(0, 0)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((size - 1) * step for size, step in steps)
    nbytes = elements * tensor.element_size()
    return Residency(resident_bytes(tensor.data_ptr(), nbytes), nbytes)
