"""Recordings: memory, devices and loaders of a program over time, and the page that shows them."""

from __future__ import annotations

from overspill.recording.recording import Recording, record_memory

__all__ = ["Recording", "record_memory"]
