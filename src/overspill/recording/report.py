"""The report at its path: there early, again and again, less and less often, and at the end.

What kills the process kills its recording: a SIGKILL loses what came after the last report, which
is at most a minute old.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from overspill.errors import DiskRefusedError
from overspill.recording.document import as_json
from overspill.recording.ledger import Snapshot
from overspill.recording.page import as_page
from overspill.recording.publish import publish_text, require_writable_report

logger = logging.getLogger("overspill")

_FIRST_NS, _GROWTH, _LATEST_NS = 5_000_000_000, 1.5, 60_000_000_000


class Report:
    """When a report is due, and where.

    Args:
        path: Where it goes.

    Attributes:
        path: The same, absolute.

    Raises:
        InputError: It is no path, or something other than a file stands there.
        DiskRefusedError: No file can be made there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = require_writable_report(path)
        self._next_ns = _FIRST_NS

    def publish(self, snapshot: Snapshot) -> None:
        """Publish the last one, durably; DiskRefusedError where it cannot be written."""
        write_report(self.path, snapshot, durable=True)

    def publish_if_due(self, elapsed_ns: int, snapshot: Callable[[], Snapshot]) -> None:
        """Publish it if that is due; a disk that refuses is told, and tried again in a minute.

        Args:
            elapsed_ns: How long the recording goes on.
            snapshot: Tells it as it stands.
        """
        if elapsed_ns < self._next_ns:
            return
        self._next_ns = min(int(elapsed_ns * _GROWTH), elapsed_ns + _LATEST_NS)
        try:
            write_report(self.path, snapshot())
        except DiskRefusedError as error:
            logger.warning("%s; the recording goes on", error)
            self._next_ns = elapsed_ns + _LATEST_NS


def write_report(path: Path, snapshot: Snapshot, *, durable: bool = False) -> None:
    """Write the document where the name ends in ".json", else the page.

    Raises:
        DiskRefusedError: It cannot be written; what stood there before still does.
    """
    text = as_json(snapshot) + "\n" if path.suffix == ".json" else as_page(snapshot)
    publish_text(path, text, durable=durable)
