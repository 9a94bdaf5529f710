from __future__ import annotations

import re
from xml.etree import ElementTree

import overspill as ov
from overspill.tensors.memory_html import memory_html

MIB = 1 << 20


def widths(html: str) -> list[float]:
    return [float(found) for found in re.findall(r"width:([\d.]+)%'", html)]


def rows(html: str) -> list[list[str]]:
    tree = ElementTree.fromstring(html)
    return [["".join(cell.itertext()) for cell in row] for row in tree.iter("tr")]


def test_the_bar_has_a_part_for_each_in_proportion() -> None:
    html = memory_html(
        1000 * MIB,
        parts=(
            ("anonymous", 200 * MIB, "stays"),
            ("shared memory", 50 * MIB, "stays"),
            ("dirty", None, "goes"),
            ("clean", 250 * MIB, "goes"),
        ),
        totals=(("limit", 1000 * MIB), ("a <name>", None)),
    )
    assert widths(html) == [20.0, 5.0, 25.0]
    assert rows(html) == [
        ["anonymous", "200.0 MiB", "stays"],
        ["shared memory", "50.0 MiB", "stays"],
        ["clean", "250.0 MiB", "goes"],
        ["limit", "1000.0 MiB", ""],
    ]


def test_what_outgrows_the_whole_fills_the_bar_and_nothing_more() -> None:
    parts = tuple((name, 3000, "") for name in "abcd")
    assert widths(memory_html(1000, parts=parts, totals=())) == [100.0] * 4


def test_without_a_whole_there_is_no_bar() -> None:
    for whole in (None, 0):
        html = memory_html(whole, parts=(("a", 1, ""),) * 4, totals=())
        assert widths(html) == [] and rows(html)[0] == ["a", "1 B", ""]


def test_a_report_shows_itself() -> None:
    report = ov.memory_report()
    held = dict((row[0], row[1]) for row in rows(report._repr_html_()))
    assert held["can still be had"] and held["this process: anonymous"]
