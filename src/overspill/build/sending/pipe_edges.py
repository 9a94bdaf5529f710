"""Edges that are read straight from the pipe that they are sent through, and stored nowhere.

Bottleneck: the pipe, from which each pair of ids is copied twice, into the raw chunk and apart into
its columns. Limits: a pipe can be read only once, so this serves builds that need the edges once;
and only pairs, which travel by turns: where columns follow one another, the first target comes
after the last source.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from overspill.build.readers.edges import EdgeChunk, InputRows, no_columns
from overspill.build.remedies import REPORT
from overspill.build.sending.frames import FrameReader, require_whole
from overspill.build.spec import STREAM_PREFIX, BuildSpec
from overspill.errors import FormatError

_ALIVE = 3
_PAIR_BYTES = 16


def read_once(spec: BuildSpec) -> str | None:
    """The stream that holds all edges of a build which reads them a single time; None without one.

    Ids that are not dense are collected before they are translated; degrees are counted before
    nodes have their order; each layout, and each type whose nodes another type's edges touch too,
    is a pass of its own.
    """
    if len(spec.edges) != 1 or len(spec.layouts) != 1 or spec.order != "given":
        return None
    (edge,) = spec.edges
    dense = all(spec.nodes[end].ids in ("auto", "dense") for end in (edge.type[0], edge.type[2]))
    alone = len(edge.paths) == 1 and edge.paths[0].startswith(STREAM_PREFIX)
    return edge.paths[0] if dense and alone else None


class PipeEdges:
    """A reader of pairs of int64 ids; rows are counted from 0, as they come.

    Args:
        frames: Stands before the stream's first frame.
        name: What errors call the edges.
    """

    text = (False, False)

    def __init__(self, frames: FrameReader, name: str) -> None:
        self.path, self.nbytes = name, 0
        self.columns = ("0", "1")
        self.count: int | None = None
        self._frames = frames
        self._begun = False

    def locate(self, edge: int) -> int:
        """How many edges came before."""
        return edge

    def rows(self, columns: tuple[str, ...]) -> InputRows:
        """There are no columns beside the ids."""
        raise no_columns(self.path, columns)

    def chunks(self, most_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges as they come; holds four chunks.

        Raises:
            SenderGoneError: The sender gave up, or ended.
            FormatError: They were read before, or not all came that their closing tells of.
        """
        if self._begun:
            raise FormatError(
                f"{self.path}: a pipe was to be read twice", path=self.path, remedy=REPORT
            )
        self._begun = True
        raw = np.empty((most_edges, 2), np.int64)
        ids = [np.empty((2, most_edges), np.int64) for _ in range(_ALIVE)]
        room = raw.reshape(-1).view(np.uint8).data
        self._frames.begin()
        for number in itertools.count():
            nbytes = self._frames.fill(room)
            first, count = self.nbytes // _PAIR_BYTES, nbytes // _PAIR_BYTES
            self.nbytes += nbytes
            if count:
                out = ids[number % _ALIVE][:, :count]
                out[:] = raw[:count].T
                yield EdgeChunk(out[0], out[1], first, self.nbytes)
            if nbytes < len(room):
                break
        require_whole(self._frames.note(), self.nbytes)
