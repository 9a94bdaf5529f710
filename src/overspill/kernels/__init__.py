"""The only home of numba: plain loops that fill given arrays, compiled without the GIL."""
