"""Pure policy: where bytes should live, and why, from what was measured; it touches nothing."""
