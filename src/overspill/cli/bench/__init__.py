"""``overspill bench``: what this machine's disk can do, and how close Overspill comes to it."""
