"""The page that shows a recording."""

from __future__ import annotations

from overspill.recording.page.page import as_page

__all__ = ["as_page"]
