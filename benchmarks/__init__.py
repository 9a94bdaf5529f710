"""Overspill against its peers and against what the machine can do, side by side in one run.

``python -m benchmarks`` runs the suite, ``python -m benchmarks.spill`` one of it; `harness` holds
the method, `page` writes docs/performance.md from the results. No figure is asserted by a test:
machines differ, and so do minutes of one machine.
"""
