"""Failures of system calls, put in where the C library is called."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from overspill.linux import libc


class Injected:
    """Makes one function of the C library fail with an errno; counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, number: int | None) -> None:
        self.calls: list[tuple[object, ...]] = []
        real = libc.call

        def call(called: str, *arguments: object) -> int:
            if called != name:
                return real(called, *arguments)
            self.calls.append(arguments)
            if number is not None:
                raise OSError(number, os.strerror(number))
            return real(called, *arguments)

        monkeypatch.setattr(libc, "call", call)


class FlakyFunction:
    """Stands in for a C function: answers -1 with each errno of a list, then really calls."""

    def __init__(self, numbers: list[int], real: Callable[..., int]) -> None:
        self.numbers = list(numbers)
        self.real = real
        self.calls = 0

    def __call__(self, *arguments: object) -> int:
        self.calls += 1
        if self.numbers:
            libc.ctypes.set_errno(self.numbers.pop(0))
            return -1
        return self.real(*arguments)
