"""JSON for programs: none of its parsers takes NaN or Infinity, but Python's own."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from overspill.cli.json_output import say_json


def strictly(text: str) -> Any:
    """Read JSON as other languages do."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("indent", [None, 2])
def test_what_is_no_number_is_null_wherever_it_stands(
    capsys: pytest.CaptureFixture[str], indent: int | None
) -> None:
    held = {"a": math.nan, "b": [math.inf, (1.5, -math.inf)], "c": {"d": math.nan, "e": "nan"}}
    say_json(held | {"f": True, "g": 3, "h": None}, indent=indent)
    told = capsys.readouterr().out
    assert strictly(told) == {
        "a": None, "b": [None, [1.5, None]], "c": {"d": None, "e": "nan"}, "f": True, "g": 3,
        "h": None,
    }  # fmt: skip
    assert (told.count("\n") == 1) == (indent is None)
