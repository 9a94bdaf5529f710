from __future__ import annotations

import pytest

from overspill.cli.wording import told_at_the_prompt
from overspill.errors import InputError


@pytest.mark.parametrize(
    ("remedy", "told"),
    [
        ('name the two columns: columns=("from", "to")', "--columns from,to"),
        ("build with ids='remap'", "--ids remap"),
        ("say edge_axis=1 for (2, E)", "say --edge-axis 1 for"),
        ('set memory_limit to "117MiB" or more', "set --memory-limit 117MiB or more"),
        ("raise num_nodes", "raise --num-nodes"),
        ("open it with open_dataset", "overspill info"),
        ("say header=True, or header=False, which", "say --header, or --no-header, which"),
        ("or say non_finite='keep', which counts", "or say --non-finite keep, which counts"),
        ("or build with resume=False, which", "or build without --resume, which"),
        ("or give fill=, a value for them", "or give --fill NAME=NUMBER, a value"),
        ("give key=, the column of node ids", "give FILE::COLUMN@KEY, the column"),
        ('Columns("x", of="n.parquet", key="id")', "NAME=n.parquet::x@id"),
        ('write Columns("weight")', "write NAME=::weight"),
    ],
)
def test_remedies_name_options(remedy: str, told: str) -> None:
    first, second = told_at_the_prompt(InputError("wrong", path="e.csv", remedy=remedy)).split("\n")
    assert first == "wrong; path: e.csv"
    assert second.startswith("  what to do: ") and told in second


def test_a_message_without_a_remedy_is_one_line() -> None:
    assert told_at_the_prompt(InputError("wrong", row=3)) == "wrong (row 3)"
