"""The two passes: edges partitioned into a spool, then sorted into rows a bucket at a time."""
