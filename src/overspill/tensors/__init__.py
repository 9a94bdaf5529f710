"""torch over storage: allocate, spill, share by path, release."""
