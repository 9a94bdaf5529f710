"""Send what belongs to nodes to the parts that own them, keeping the order within a part.

Bottleneck: memory bandwidth. Algorithm: elements come as runs, one a node, and each run goes to the
end of its part's place in an output buffer; a first loop over the runs counts how much each part
gets, so that its place is contiguous. Both take up in the middle of a run, for a run may be longer
than what is in memory. Parts outside of a group are passed over: the file is read again for them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.kernels.jit import kernel
from overspill.kernels.sample import mixed

Ids = npt.NDArray[np.int64]
Parts = npt.NDArray[np.uint32]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def hash_nodes(first: int, num_parts: int, parts: Parts) -> None:
    """Give the part of each of the nodes from `first` on: splitmix64 of its id, modulo the parts.

    Args:
        first: The first node's id.
        num_parts: Number of parts.
        parts: Filled, (nodes,).
    """
    for place in range(parts.shape[0]):
        state = np.uint64(first + place) + _GOLDEN
        parts[place] = mixed(state) % np.uint64(num_parts)


@kernel
def add_lengths(parts: Parts, lengths: Ids, totals: Ids) -> None:
    """Add the length of each node's run to the total of its part.

    Args:
        parts: The part of each node.
        lengths: The length of its run.
        totals: (parts,), updated.
    """
    for place in range(parts.shape[0]):
        totals[parts[place]] += lengths[place]


@kernel
def count_words(
    runs: tuple[Parts, Ids], start: tuple[int, int], size: int, first: int, counts: Ids
) -> int:
    """Count the words of a piece that each part of a group gets.

    Args:
        runs: The part of each run, and its length in words.
        start: The run at which the piece starts, and the words of it that came before.
        size: Words of the piece.
        first: The group's first part.
        counts: (parts of the group,), added to.

    Returns:
        Words of the piece that these runs are for.
    """
    parts, lengths = runs
    run, taken = start
    at = 0
    while run < parts.shape[0] and at < size:
        step = min(lengths[run] - taken, size - at)
        part = np.int64(parts[run]) - first
        if 0 <= part < counts.shape[0]:
            counts[part] += step
        at += step
        taken += step
        if taken == lengths[run]:
            run += 1
            taken = 0
    return at


@kernel
def route_words(
    runs: tuple[Parts, Ids],
    start: tuple[int, int],
    words: npt.NDArray[Any],
    first: int,
    places: Ids,
    out: npt.NDArray[Any],
) -> tuple[int, int]:
    """Copy the words of a piece to their parts' places.

    Args:
        runs: As in `count_words`.
        start: Likewise.
        words: The piece; no longer than the runs.
        first: The group's first part.
        places: Where the next word of each part of the group goes; moved on.
        out: The output buffer, of the words' dtype.

    Returns:
        The run at which the next piece starts, and the words of it that were copied.
    """
    parts, lengths = runs
    run, taken = start
    at = 0
    # Runs without words are passed by at once: a piece may end with them, and the next has none.
    while run < parts.shape[0] and (at < words.shape[0] or lengths[run] == taken):
        step = min(lengths[run] - taken, words.shape[0] - at)
        part = np.int64(parts[run]) - first
        if 0 <= part < places.shape[0]:
            place = places[part]
            # Unsigned, so that no index is looked at for being negative.
            to, source = np.uint64(place), np.uint64(at)
            for word in range(np.uint64(step)):
                out[to + word] = words[source + word]
            places[part] = place + step
        at += step
        taken += step
        if taken == lengths[run]:
            run += 1
            taken = 0
    return run, taken
