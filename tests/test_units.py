from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overspill.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1073741824", 1 << 30),
        ("2GiB", 2 << 30),
        ("2 GiB", 2 << 30),
        ("2gib", 2 << 30),
        ("2Gi", 2 << 30),
        ("2G", 2 << 30),
        ("2GB", 2_000_000_000),
        ("1.5GiB", 3 << 29),
        ("512MiB", 512 << 20),
        ("64k", 64 << 10),
        ("7B", 7),
        ("3TiB", 3 << 40),
        (42, 42),
    ],
)
def test_sizes_as_people_write_them(text: str | int, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "-1GiB", "1 XiB", "1e9", "2GiBs", "1,5GiB", -1])
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


def test_sizes_for_people() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(1023) == "1023 B"
    assert format_bytes(61 << 20) == "61.0 MiB"
    assert format_bytes(5 << 40) == "5.0 TiB"
    assert format_bytes(5 << 50) == "5120.0 TiB"


@given(st.integers(min_value=0, max_value=1 << 62))
def test_plain_numbers_pass_exactly(nbytes: int) -> None:
    assert parse_bytes(str(nbytes)) == nbytes
