"""Let the signals by which others end a command run its clean-up, as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt for the span.

    Outside the main thread, where no handler can be set, it changes nothing.
    """

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with ExitStack() as undo:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                undo.callback(signal.signal, number, signal.signal(number, interrupt))
        yield
