"""How many edges a text file holds, estimated from samples of it: for plans, never for results.

Bottleneck: a few reads a file. Lines of plain text are counted in windows spread over the file; of
compressed text the beginning is inflated; records of TFRecord tell their own length. Memory: one
window, or what is inflated at a time.
Limits: the beginning of a compressed file may not be like its end.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from overspill.build.readers.compressed import compression_of, opened_stream
from overspill.build.readers.edges import sniff_format
from overspill.build.readers.source import SourceFile

_WINDOWS = 16
_WINDOW_BYTES = 64 << 10
_INFLATED_BYTES = 4 << 20
_BLOCK_BYTES = 1 << 18
_RECORD_BESIDE_BYTES = 16  # its length and two checksums
# The rest of a file may be less dense than the windows that were looked at.
_CERTAIN_SHARE = 0.75


@dataclass(frozen=True)
class EdgeEstimate:
    """A number of edges that nobody knows before the file is read.

    Attributes:
        likely: The estimate.
        least: A number that the file hardly falls short of; 0 where the sample does not tell.
    """

    likely: int
    least: int


@functools.lru_cache(maxsize=256)
def estimate_edges(source: SourceFile) -> EdgeEstimate:
    """Estimate the edges of a file whose format does not tell their number.

    Reads 1 MiB of plain text, or what inflates to 4 MiB; the answer is kept for the same file.

    Raises:
        InputError: The file cannot be read, is damaged, or was changed.
    """
    text = sniff_format(source) != "tfrecord"
    if text and compression_of(source) is None:
        likely = _by_windows(source)
        return EdgeEstimate(likely, int(_CERTAIN_SHARE * likely))
    return EdgeEstimate(_by_beginning(source, text=text), 0)


def _by_windows(source: SourceFile) -> int:
    if source.nbytes <= _WINDOWS * _WINDOW_BYTES:
        starts, length = [0], source.nbytes
    else:
        step = (source.nbytes - _WINDOW_BYTES) // (_WINDOWS - 1)
        starts, length = [step * number for number in range(_WINDOWS)], _WINDOW_BYTES
    lines = 0
    with source.opened() as file:
        for start in starts:
            file.seek(start)
            window = file.read(length)
            # A line that a window cuts in two is a whole one on the average of both ends.
            lines += _lines(window) - (len(starts) > 1)
    return max(0, lines) * source.nbytes // max(1, len(starts) * length)


def _by_beginning(source: SourceFile, *, text: bool) -> int:
    held, found = b"", 0
    with opened_stream(source) as stream:
        inflated = 0
        while inflated < _INFLATED_BYTES and (block := stream.read(_BLOCK_BYTES)):
            inflated += len(block)
            held += block
            if text:
                whole, _, held = held.rpartition(b"\n")
                found += _lines(whole)
            else:
                records, held = _records(held)
                found += records
        ended = inflated < _INFLATED_BYTES
        found += bool(ended and text and held.strip())
        # How far into the file the sample reached; what is held back belongs to the rest.
        reached = stream.done * (inflated - (0 if ended else len(held))) / max(1, inflated)
    return found if ended else int(found * source.nbytes / max(1.0, reached))


def _lines(text: bytes) -> int:
    return sum(1 for line in text.splitlines() if line.strip() and not line.startswith(b"#"))


def _records(data: bytes) -> tuple[int, bytes]:
    """Whole records at the start of some bytes, and what follows them."""
    at = count = 0
    while at + 8 <= len(data):
        end = at + int.from_bytes(data[at : at + 8], "little") + _RECORD_BESIDE_BYTES
        if end > len(data):
            break
        at, count = end, count + 1
    return count, data[at:]
