"""The parent's ends of the pipes: neither process stands before a full one for ever."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from overspill.build.sending.conversation import Events, Outlet, UnwantedError
from overspill.build.sending.frames import FrameReader, SenderGoneError
from overspill.linux.pipes import open_wide_pipe

DATA = bytes(range(256)) * (3 << 12)  # three times what the pipe holds


class Peer:
    """The process at the other end, as descriptors."""

    def __init__(self) -> None:
        self.reading, self.writing = open_wide_pipe()
        self.events_fd, self.telling = os.pipe()
        self.told: list[dict[str, Any]] = []
        self.events = Events(self.events_fd, self.told.append)
        self.outlet = Outlet(self.writing.fileno(), self.events)

    def tell(self, event: dict[str, Any]) -> None:
        os.write(self.telling, json.dumps(event).encode() + b"\n")

    def end(self) -> None:
        os.close(self.telling)
        self.telling = -1

    def close(self) -> None:
        self.reading.close()
        self.writing.close()
        for fd in (self.events_fd, self.telling):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def peer() -> Iterator[Peer]:
    held = Peer()
    yield held
    held.close()


def test_events_are_taken_while_the_pipe_is_full(peer: Peer) -> None:
    """The process tells more than its pipe holds before it reads on: both would wait for ever."""
    arrived = bytearray(len(DATA))

    def talk_then_read() -> None:
        for number in range(2000):
            peer.tell({"event": "progress", "number": number, "filler": "x" * 100})
        frames = FrameReader(peer.reading.fileno())
        frames.begin()
        frames.fill(memoryview(arrived))

    thread = threading.Thread(target=talk_then_read, name="overspill-test-peer")
    thread.start()
    peer.outlet.put(DATA)
    thread.join()
    peer.end()
    assert peer.events.take_all() == {"event": "progress", "number": 1999, "filler": "x" * 100}
    assert arrived == DATA and [event["number"] for event in peer.told] == list(range(2000))


def test_events_in_pieces(peer: Peer) -> None:
    line = json.dumps({"event": "plan", "n": 1}).encode() + b"\n"
    for byte in line[:-1]:
        os.write(peer.telling, bytes([byte]))
        peer.events.take_some()
        assert peer.events.last == {}
    os.write(peer.telling, line[-1:] + line + b'{"event": "cut')
    peer.end()
    assert peer.events.take_all() == {"event": "plan", "n": 1} and len(peer.told) == 2


def test_an_error_is_the_last_but_not_told(peer: Peer) -> None:
    peer.tell({"event": "plan"})
    peer.tell({"event": "error", "message": "m"})
    peer.end()
    assert peer.events.take_all() == {"event": "error", "message": "m"}
    assert peer.told == [{"event": "plan"}]


def test_nobody_reads_any_more(peer: Peer) -> None:
    peer.reading.close()
    with pytest.raises(UnwantedError):
        peer.outlet.put(b"x")


def test_the_process_ends_while_another_holds_its_pipe(peer: Peer) -> None:
    """A process forked at the wrong moment keeps the reading end: only the events' end tells."""
    peer.tell({"event": "error", "message": "m"})
    peer.end()
    with pytest.raises(UnwantedError):
        peer.outlet.put(DATA)
    assert peer.events.last["message"] == "m"


def test_giving_up_between_frames_is_told_at_once(peer: Peer) -> None:
    peer.outlet.put(b"abc")
    peer.outlet.give_up()
    frames = FrameReader(peer.reading.fileno())
    frames.begin()
    with pytest.raises(SenderGoneError):  # the pipe is still open
        frames.fill(memoryview(bytearray(10)))


def test_giving_up_within_a_frame_puts_nothing_into_it(peer: Peer) -> None:
    def interrupt(_: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    peer.outlet = Outlet(peer.writing.fileno(), Events(peer.events_fd, interrupt))
    peer.tell({"event": "plan"})
    with pytest.raises(KeyboardInterrupt):
        peer.outlet.put(DATA)
    peer.outlet.give_up()
    peer.writing.close()
    frames, held = FrameReader(peer.reading.fileno()), bytearray(len(DATA))
    frames.begin()
    with pytest.raises(SenderGoneError):
        frames.fill(memoryview(held))
    sent = held.rstrip(b"\0")
    assert DATA.startswith(sent) and len(sent) < len(DATA)


def test_giving_up_where_nobody_reads(peer: Peer) -> None:
    peer.reading.close()
    peer.outlet.give_up()
