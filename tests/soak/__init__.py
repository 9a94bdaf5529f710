"""``python -m soak``: builds, loaders and spills at random, killed at random, on a small machine.

A supervisor makes a stage (a memory group, a small disk, a small /dev/shm), plays rounds on it and
looks after each whether anything was lost, left behind, or refused without a name.
"""
