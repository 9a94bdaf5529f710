"""The only home of system calls, ctypes, fcntl, /proc and /sys.

Every module imports on every system. Where a call is Linux's alone, `libc.SUPPORTED` is False
elsewhere and the call raises `UnavailableError`, so that the rooms above need no switch of their
own.
"""
