"""The parent's ends of the pipes to the build's process: its events, and what is sent to it.

One thread serves both: where a write would wait, it waits for the events too, so that neither
process can stand before a full pipe for ever.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from overspill.build.sending.frames import GAVE_UP, frame

_PIECE_BYTES = 1 << 20


class UnwantedError(Exception):
    """The build's process ended, or no longer reads what is sent: its events say why."""


class Events:
    """The lines of JSON that the build's process writes, as they come.

    Args:
        fd: The pipe that they come through.
        on_event: Called with each that is no error.

    Attributes:
        last: The one that came last; empty before the first.
        ended: Whether the process closed its end.
    """

    def __init__(self, fd: int, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.fd, self._on_event = fd, on_event
        self.last: dict[str, Any] = {}
        self.ended = False
        self._rest = b""

    def take_some(self) -> None:
        """Wait for some, or for the end."""
        data = os.read(self.fd, 1 << 16)
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.last = json.loads(line)
            if self.last.get("event") != "error":
                self._on_event(self.last)

    def take_all(self) -> dict[str, Any]:
        """Wait for the end; returns the last."""
        while not self.ended:
            self.take_some()
        return self.last


class Outlet:
    """The writing end of the pipe to the build's process.

    Args:
        fd: The pipe, which it does not own; made non-blocking.
        events: Served while the pipe is full.
    """

    def __init__(self, fd: int, events: Events) -> None:
        os.set_blocking(fd, False)
        self._fd, self._events = fd, events
        self._between_frames = True
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._poll.register(events.fd, select.POLLIN)

    def put(self, data: Any) -> None:
        """Send bytes as a frame.

        Raises:
            UnwantedError: Nobody reads them any more.
        """
        view = memoryview(data).cast("B")
        self._between_frames = False
        self._write(memoryview(frame(len(view))))
        self._write(view)
        self._between_frames = True

    def end_stream(self) -> None:
        """Send the empty frame after a stream's last."""
        self.put(b"")

    def give_up(self) -> None:
        """Tell the reader that no more will come, where a frame could begin."""
        if self._between_frames:
            with suppress(UnwantedError):
                self._write(memoryview(GAVE_UP.to_bytes(8, "little")))

    def _write(self, view: memoryview) -> None:
        while view:
            try:
                view = view[os.write(self._fd, view[:_PIECE_BYTES]) :]
            except BlockingIOError:
                self._wait()
            except BrokenPipeError as error:
                raise UnwantedError from error

    def _wait(self) -> None:
        for fd, _ in self._poll.poll():
            if fd == self._events.fd:
                self._events.take_some()
        if self._events.ended:
            raise UnwantedError
