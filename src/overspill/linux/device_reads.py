"""How much this process made the device read, as the kernel accounts for it."""

from __future__ import annotations

from pathlib import Path

from overspill.linux.process_io import PROC, device_bytes


def device_bytes_read(*, proc: Path = PROC) -> int | None:
    """Bytes that this process has had read from devices so far, pages asked for ahead included.

    What it finds in the page cache counts nothing. Costs about 10 us.

    Args:
        proc: Where /proc is.

    Returns:
        The kernel's count; None where it keeps none, or does not show it (hidden by a container).
    """
    held = device_bytes(proc=proc)
    return None if held is None else held.read_bytes
