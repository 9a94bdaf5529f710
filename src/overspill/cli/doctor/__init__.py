"""``overspill doctor``: what is measured, what follows from it, and how it is shown."""
