from __future__ import annotations

import errno
import inspect
import pickle

import pytest

from overspill import errors
from overspill.errors import DiskRefusedError, InputError, OverspillError

LEAVES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, OverspillError) and kind is not OverspillError
]
BUILT_INS = (OSError, ValueError, TypeError, MemoryError, RuntimeError)


@pytest.mark.parametrize("kind", LEAVES)
def test_every_leaf_is_a_built_in_too_and_survives_pickling(kind: type[OverspillError]) -> None:
    assert issubclass(kind, BUILT_INS)
    error = kind("no room", path="/data", remedy="free some")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert (copy.path, copy.remedy) == ("/data", "free some")


def test_the_message_names_wanted_available_and_remedy() -> None:
    error = DiskRefusedError(
        "the disk is full",
        path="/data/a",
        errno=errno.ENOSPC,
        needed_bytes=64 << 20,
        available_bytes=8 << 20,
        remedy="free 56 MiB",
    )
    assert str(error) == (
        "the disk is full; path: /data/a; needed: 64.0 MiB; available: 8.0 MiB; remedy: free 56 MiB"
    )
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.errno, copy.needed_bytes, copy.available_bytes) == (28, 64 << 20, 8 << 20)


def test_input_errors_name_file_row_column_and_value() -> None:
    error = InputError("not an integer", path="e.csv", row=7, column="dst", value="1.5")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "not an integer; path: e.csv (row 7, column dst, value 1.5)"
    assert (copy.row, copy.column, copy.value) == (7, "dst", "1.5")
