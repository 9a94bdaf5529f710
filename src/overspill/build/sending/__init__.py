"""What lies in the caller's memory: sent through a pipe, taken in or read as it comes."""
