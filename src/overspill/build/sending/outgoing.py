"""What lies in the caller's memory, sent to the build's process in the caller's own thread.

The thread that called the build would only wait for it. So it sends, and between two writes takes
in what the process says: a caller's iterator runs in the thread that its author expects (a database
connection may be bound to it), an interrupt reaches it, and no thread is there when others fork.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from overspill.build.sending.conversation import Outlet, UnwantedError
from overspill.build.sending.frames import note
from overspill.build.sending.sent_chunks import TEXT_KINDS, edge_payload, row_payload
from overspill.build.sending.sent_files import npy_behind
from overspill.build.sending.sent_values import Pair, Several, Table, Value, Whole, recognise
from overspill.build.spec import STREAM_PREFIX

_GATHERED_BYTES = 64 << 10
_EDGES = "edges"


@dataclass
class _Sent:
    value: Value
    name: str
    edges: bool


class Outgoing:
    """The streams of one build; implements `overspill.build.describe.Streams`.

    Not safe between threads. Keeps what it is given alive; reads it when the build runs, once, and
    iterators are used up by it.

    Args:
        prepare: Turns a value that only a higher floor understands, such as a tensor, into a numpy
            array; gives every other value back as it is.
    """

    def __init__(self, prepare: Callable[[object], object] = lambda value: value) -> None:
        self._prepare = prepare
        self._sent: list[_Sent] = []
        self._known: dict[tuple[int, bool], tuple[object, str]] = {}

    def add(self, value: object, *, what: str) -> str | None:
        """Take a value: an array, a pair of arrays or lists, a table, an iterator of these.

        Args:
            value: Anything with ``__array__`` or ``__dlpack__``; for edges of shape (2, E) or
                (E, 2), or (sources, targets); anything that gives Arrow batches; an iterable whose
                items are such. An object that was added before is sent only once.
            what: The argument, as errors call it; "edges" are read as pairs, all else as rows.

        Returns:
            The name under which it will arrive, or the path of the .npy file that a memory-mapped
            array is all of; None where it is nothing that can be sent.

        Raises:
            InputError: It is of such a kind, but holds what cannot be sent.
        """
        edges = what == _EDGES
        known = self._known.get((id(value), edges))
        if known is not None:
            return known[1]
        path = npy_behind(value)
        if path is not None:
            return path
        name = self._name(what)
        told = recognise(value, name, edges=edges, prepare=self._prepare)
        if told is None:
            return None
        stream = f"{STREAM_PREFIX}{len(self._sent)}"
        self._sent.append(_Sent(told, name, edges))
        # The value is kept: its id would otherwise become another's.
        self._known[id(value), edges] = value, stream
        return stream

    def _name(self, what: str) -> str:
        before = sum(sent.name.startswith(f"{what} (") for sent in self._sent)
        return f"{what} (sent from memory{f', number {before + 1}' if before else ''})"

    @property
    def kinds(self) -> tuple[str, ...]:
        """What each stream is: "npy", "arrow", or "chunks" where the first chunk will tell."""
        return tuple(_kind(sent) for sent in self._sent)

    def send(self, outlet: Outlet, edge_axes: Mapping[str, int | None]) -> None:
        """Send everything: first what is at hand, then iterators in the order of their adding.

        So edges from an iterator come last where all else is arrays, and need not be kept by the
        process that reads them.

        Args:
            outlet: Where to.
            edge_axes: Stream -> the axis along which its edges lie, where that was told.

        Raises:
            UnwantedError: The build's process ended, or no longer reads.
            BaseException: Of a caller's iterator, as it is; the process is told that no more comes.
        """
        try:
            streams = {f"{STREAM_PREFIX}{number}": sent for number, sent in enumerate(self._sent)}
            order = sorted(streams, key=lambda stream: isinstance(streams[stream].value, Several))
            outlet.put(note([_announced(stream, streams[stream]) for stream in order]))
            for stream in order:
                self._send_one(outlet, streams[stream], edge_axes.get(stream))
        except UnwantedError:
            raise
        except BaseException:
            outlet.give_up()
            raise

    def _send_one(self, outlet: Outlet, sent: _Sent, axis: int | None) -> None:
        with ExitStack() as stack:
            value = sent.value
            if isinstance(value, Several):
                iterator = iter(value.items)
                stack.callback(getattr(iterator, "close", _nothing))
                value = Several(iterator)
            if sent.edges:
                payload = edge_payload(value, sent.name, edge_axis=axis, prepare=self._prepare)
            else:
                payload = row_payload(value, sent.name, prepare=self._prepare)
            stack.callback(getattr(payload.pieces, "close", _nothing))
            outlet.put(note({"kind": payload.kind, "edge_axis": payload.edge_axis}))
            for piece in _gathered(payload.pieces):
                outlet.put(piece)
            outlet.end_stream()
            outlet.put(note(payload.closing))


def _nothing() -> None:
    """What closing is where there is nothing to close."""


def _gathered(pieces: Iterator[Any]) -> Iterator[Any]:
    """Small pieces together: each write wakes the reader."""
    held = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        if len(held) + view.nbytes < _GATHERED_BYTES:
            held += view
            continue
        if held:
            yield held
            held = bytearray()
        if view.nbytes:
            yield view
    if held:
        yield held


def _kind(sent: _Sent) -> str:
    match sent.value:
        case Several():
            return "chunks"
        case Table():
            return "arrow"
        case Pair() if not sent.value.is_integer:
            return "arrow"
        case Whole() if sent.edges and sent.value.array.dtype.kind in TEXT_KINDS:
            return "arrow"
    return "npy"


def _announced(stream: str, sent: _Sent) -> dict[str, Any]:
    return {"stream": stream, "name": sent.name, "nbytes": _nbytes(sent.value)}


def _nbytes(value: Value) -> int | None:
    """The least that a stream takes, where it can be known."""
    if isinstance(value, Whole):
        return value.array.nbytes
    if isinstance(value, Pair) and value.is_integer:
        return int(value.sources.nbytes + value.targets.nbytes)
    return None
