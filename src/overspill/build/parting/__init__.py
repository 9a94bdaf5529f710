"""A dataset split into parts: rows routed to their owners in one sequential pass."""
