"""Rows for a loader: gathered through one door, kept hot, read ahead in file order, packed."""
