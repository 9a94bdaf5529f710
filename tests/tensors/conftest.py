from __future__ import annotations

from spilling import empty_process, no_spill_dir, spill_dir

__all__ = ["empty_process", "no_spill_dir", "spill_dir"]
