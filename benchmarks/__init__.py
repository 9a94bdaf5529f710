"""Overspill against its peers and against what the machine can do, side by side in one run.

``python -m benchmarks`` runs every case, ``python -m benchmarks.spill`` one; `harness` holds the
method. Nothing here is asserted by a test: machines differ, and so do minutes of one machine.
"""
