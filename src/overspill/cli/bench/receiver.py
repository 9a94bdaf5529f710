"""A spawned process that takes what it is sent, as a DataLoader's worker or a rank does."""

from __future__ import annotations

import signal
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from types import TracebackType

import torch
import torch.multiprocessing as multiprocessing

from overspill.errors import UnavailableError

_ANSWER_SECONDS = 60.0


class Receiver:
    """A context manager: the process starts when it is entered, and is up once it has answered.

    The first send waits for its imports, some seconds; none is sent before it is wanted, so that
    the caller can work meanwhile.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._mine, self._theirs = context.Pipe()
        self._process = context.Process(target=_receive, args=(self._theirs,), daemon=True)

    def send(self, message: object) -> None:
        """Send, and wait until the receiver has used it.

        Raises:
            UnavailableError: It ended, or does not answer.
        """
        try:
            self._mine.send(message)
            # One that hangs would otherwise be waited for without end.
            if self._mine.poll(_ANSWER_SECONDS):
                self._mine.recv()
                return
        except (BrokenPipeError, ConnectionResetError, EOFError):
            self._process.join(_ANSWER_SECONDS)
        raise UnavailableError(
            f"the process that receives tensors does not answer (exit code "
            f"{self._process.exitcode})",
            remedy="look for the out-of-memory killer in dmesg; a spawned process takes 300 MiB",
        )

    def __enter__(self) -> Receiver:
        # Ctrl-C reaches every process of a terminal; this one ends with the command. The tracker
        # goes first: its own start would let the signal through again.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._theirs.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Its end of the pipe closes: it leaves its loop, unless it is still importing.
        self._mine.close()
        if kind is not None:
            self._process.terminate()
        self._process.join(_ANSWER_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def _receive(pipe: Connection) -> None:
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        if isinstance(message, torch.Tensor):
            int(message.view(-1)[0])
        del message
        try:
            pipe.send(0)
        except BrokenPipeError:
            return
