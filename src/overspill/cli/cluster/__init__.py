"""``overspill cluster``: what concerns several machines."""
