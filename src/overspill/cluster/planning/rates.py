"""What a machine does a second, each figure with where it comes from: measured, given or assumed.

What is assumed is what this project's benchmarks found on a virtual machine of 2 cores, rounded
down, and of the network the usual 10 Gbit/s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from overspill.errors import InputError
from overspill.units import format_bytes

Source = Literal["measured", "given", "assumed"]
# Less is another unit that was meant: "3" for 3 GB.
_LEAST_BYTES = 1 << 20
_OF_BYTES = ("disk_write", "disk_read", "network", "transport", "checksum", "copy")


@dataclass(frozen=True)
class Rate:
    """A figure and its source.

    Attributes:
        value: Of the unit its name says.
        source: Where it comes from.
    """

    value: float
    source: Source = "assumed"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What one machine does.

    Attributes:
        cores: Processors that may be used.
        disk_write: Bytes a second, in order, synced.
        disk_read: Bytes a second, in order.
        random_reads: Reads of 4 KiB a second, at random, many in flight.
        network: Bytes a second into a machine, and as many out of it at the same time.
        transport: Bytes a second that Ray hands over between two processes of one core, copies and
            all.
        round_trip: Seconds from a request to its answer, where both are small.
        split_edges: Edges a second and core that are read and sent to their owners' files.
        build_edges: Edges a second and core that become rows.
        checksum: Bytes a second of array files that one thread checksums while they are written.
        start: Seconds until a process that builds has started.
        sample_edges: Edges a second and core that are sampled, in memory.
        copy: Bytes a second and core of rows that are copied in memory.
    """

    cores: Rate = Rate(2)
    disk_write: Rate = Rate(1.5e9)
    disk_read: Rate = Rate(1.5e9)
    random_reads: Rate = Rate(100e3)
    network: Rate = Rate(1.25e9)
    transport: Rate = Rate(400e6)
    round_trip: Rate = Rate(1.5e-3)
    split_edges: Rate = Rate(25e6)
    build_edges: Rate = Rate(15e6)
    checksum: Rate = Rate(1e9)
    start: Rate = Rate(2.0)
    sample_edges: Rate = Rate(6e6)
    copy: Rate = Rate(2e9)

    def having(self, source: Source, **values: float | None) -> Rates:
        """The same with some figures from another source; those that are None stay.

        Raises:
            InputError: A name is none of these, a value is not above 0, or less than 1 MiB a second
                is given for what moves bytes.
        """
        held = {name: value for name, value in values.items() if value is not None}
        for name, value in held.items():
            _require_rate(name, value)
            if source == "given" and name in _OF_BYTES and value < _LEAST_BYTES:
                raise InputError(
                    f"{name}={value:g} is {format_bytes(int(value))} a second, and no machine does "
                    f"less than {format_bytes(_LEAST_BYTES)}",
                    value=str(value),
                    remedy='say the unit: such as "3GB", or 3e9',
                )
        return replace(self, **{name: Rate(float(held[name]), source) for name in held})

    def by_source(self) -> dict[Source, list[str]]:
        """The names of the figures of each source."""
        return {
            source: [one.name for one in fields(self) if self._of(one.name).source == source]
            for source in get_args(Source)
        }

    def to_json(self) -> dict[str, dict[str, float | str]]:
        """By name: value and source."""
        held = {one.name: self._of(one.name) for one in fields(self)}
        return {name: {"value": rate.value, "source": rate.source} for name, rate in held.items()}

    def _of(self, name: str) -> Rate:
        rate: Rate = getattr(self, name)
        return rate


ASSUMED: Rates = Rates()


def _require_rate(name: str, value: float) -> None:
    names = [one.name for one in fields(Rates)]
    if name not in names:
        raise InputError(f"no rate is called {name!r}", remedy=f"one of: {', '.join(names)}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise InputError(
            f"{name}={value!r} is no rate", value=str(value), remedy="give one above 0"
        )
