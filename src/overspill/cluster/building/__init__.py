"""A partitioned build in stages: init, partition, finalise; each may be killed and run again."""
