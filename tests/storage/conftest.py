from __future__ import annotations

from spilling import no_spill_dir, spill_dir

__all__ = ["no_spill_dir", "spill_dir"]
