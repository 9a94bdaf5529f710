"""The page: one file that needs nothing, in which text stays text; axes and means."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from overspill.recording import Recording
from overspill.recording.loader_counts import LoaderCounts
from overspill.recording.page.rates import rates
from overspill.recording.page.scales import (
    byte_step,
    count_step,
    elapsed,
    round_bytes,
    short_count,
    steps_up_to,
    time_step,
)
from recorded import MIB, ToldLoaders, ToldMemory, recording_of, row

NASTY = '</script><img src=x onerror="alert(1)"> & \'"\u2028<!--'
VOID = {"meta", "link", "path", "img", "br"}


class Page(HTMLParser):
    """Elements, their text, and whether they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def text(self, *tags: str) -> str:
        return " ".join(part for tag in tags for part in self.texts.get(tag, []))


def full(title: str = "train.py", label: str = "epoch 1") -> Recording:
    memory, loaders = ToldMemory(), ToldLoaders()
    memory.anon, memory.kernel = 200 * MIB, 3 * MIB
    with recording_of(memory, loaders, title=title) as recording, recording.phase(label):
        memory.shmem, memory.dirty, memory.writeback = 50 * MIB, 20 * MIB, 10 * MIB
        memory.clean = 600 * MIB
        recording.mark(label)
        loaders.counts = LoaderCounts(12_345, 10, 1 << 30, 5)
        memory.kills = 2
    return recording


def test_it_needs_nothing_else_and_no_script_but_its_own_may_run() -> None:
    text = full().to_html()
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in {"img", "iframe", "object", "base", "form"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"src", "href", "srcset", "data", "action"}:
                assert (tag, value) == ("link", "data:,")
    assert "@import" not in text and not re.search(r"url\(|https?://", text)
    (policy,) = [a["content"] for tag, a in page.tags if "http-equiv" in a]
    data, script = re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None and f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert json.loads(data)["title"] == "train.py"


def test_names_stay_text() -> None:
    recording = full(NASTY, NASTY)
    text = recording.to_html()
    page = Page(text)
    assert page.text("h1") == NASTY
    assert NASTY in page.text("span") and NASTY in page.text("th")
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert len(re.findall(r"<script", text)) == 2
    data = re.findall(r"<script type[^>]*>(.*?)</script>", text, re.DOTALL)[0]
    assert json.loads(data) == json.loads(recording.to_json())
    assert json.loads(data)["marks"][0]["name"] == NASTY


def test_who_cannot_see_the_chart_reads_the_same() -> None:
    page = Page(full().to_html())
    cells = page.text("th", "td")
    for told in (
        "Anonymous",
        "200.0 MiB",
        "Shared memory",
        "50.0 MiB",
        "Kernel and locked",
        "3.0 MiB",
        "Dirty cache",
        "20.0 MiB",
        "Writeback",
        "10.0 MiB",
        "Clean cache",
        "600.0 MiB",
        "283.0 MiB",
        "12.3 k",
    ):
        assert told in cells
    assert "The kernel killed 2 processes" in page.text("strong")
    assert "283.0 MiB of the limit of 1.0 GiB" in page.text("p")
    assert "741.0 MiB of room were left" in page.text("p")
    drawings = [a for tag, a in page.tags if tag == "svg"]
    assert drawings and all(a["role"] == "img" and a["aria-label"] for a in drawings)


def places(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?:left|width|top):([-\d.]+)%", text)]


def coordinates(text: str) -> list[float]:
    drawn = " ".join(re.findall(r' d="([^"]*)"', text))
    return [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf", drawn)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"limit_bytes": None},
        {"limit_bytes": 1 << 50},
        {"limit_bytes": 1, "anon": 5},
        {"anon": 1 << 44},
        {"path": "/proc/meminfo"},
    ],
    ids=str,
)
def test_everything_lies_within_its_chart(change: dict[str, Any]) -> None:
    memory = ToldMemory()
    for name, value in change.items():
        setattr(memory, name, value)
    with recording_of(memory) as recording:
        recording.mark("one")
        for number in range(3):
            with recording.phase(f"phase {number}"):
                memory.clean = number * MIB
    text = recording.to_html()
    Page(text)
    assert all(0 <= place <= 100 for place in places(text))
    assert all(0 <= place <= 1000 for place in coordinates(text))
    far = "lies far above this chart" in text
    assert far == (
        change.get("limit_bytes") == 1 << 50 or change in ({}, {"path": "/proc/meminfo"})
    )
    assert ("no limit" in text) == (change == {"limit_bytes": None})
    assert ("no room was left" in text) == bool({1, 1 << 44} & set(change.values()))


def test_thousands_of_marks_and_phases_make_no_large_page() -> None:
    with recording_of(ToldMemory()) as recording:
        for number in range(3000):
            recording._ledger._held.phases.mark(f"mark {number}", number)
            span = recording._ledger._held.phases.begin(f"phase {number}", number, row())
            recording._ledger._held.phases.end(span, number + 1, row())
    text = recording.to_html()
    assert len(text) < 400_000
    page = Page(text)
    assert "The 40 longest of 513 phases" in page.text("p")
    assert "earlier ones are left out" in page.text("p")
    assert 'class="line mark"' not in text  # they would hide the chart


def test_days_of_samples_make_no_large_page() -> None:
    with recording_of(ToldMemory()) as recording:
        random = np.random.default_rng(0)
        for number in range(5000):
            figures = random.integers(1 << 40, 1 << 41, 5).tolist()
            kinds = ("anon", "shmem", "clean_file", "dirty", "writeback")
            levels = {f"{kind}_bytes": n for kind, n in zip(kinds, figures, strict=True)}
            counts = {"read_bytes": number << 40, "loader_rows": number << 20}
            sample = row(elapsed_ns=number * 10**12, limit_bytes=1 << 42, **levels, **counts)
            recording._ledger._held.add(sample, "g", "g")
        recording._ledger._sampler.began_ns -= 5000 * 10**12
    assert len(recording.to_html()) < 500_000


def test_a_machine_that_tells_nothing_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overspill.recording.sampler.device_bytes", lambda _pid: None)
    with recording_of(ToldMemory()) as recording:
        pass
    page = Page(recording.to_html())
    assert "The kernel does not show here" in page.text("p")
    assert "Read from devices" not in page.text("dt")


def test_means_are_of_even_spans_and_lose_nothing() -> None:
    times = [0, 10**9, 4 * 10**9, 4 * 10**9 + 1, 10 * 10**9]
    counts = [0, 100, 100, 900, 1000]
    rows = np.array([row(elapsed_ns=t, read_bytes=n) for t, n in zip(times, counts, strict=True)])
    found = rates(rows, "read_bytes", interval_ns=10**8)
    assert len(found.values) == 40 and found.span_s == 0.25
    assert (found.values * np.diff(found.edges_s)).sum() == pytest.approx(1000)
    assert found.total == 1000
    assert found.most == pytest.approx(800 / 0.25 + 100 / 6, rel=0.01)
    few = rates(rows, "read_bytes", interval_ns=10**8, most_spans=4)
    assert few.values == pytest.approx([40, 340.0, 20 - 5 / 3, 16.67], abs=30)
    assert rates(rows[:1], "read_bytes", interval_ns=10**8).values.tolist() == [0.0]


def test_axes_have_few_round_steps() -> None:
    for most in (1, 7, 1000, 1 << 20, (1 << 30) * 1.12, 3.7e12):
        step = byte_step(most, 5)
        assert step & (step - 1) == 0
        assert 1 <= len(steps_up_to(most, step)) - 1 <= 5
    for most in (1, 3, 12.5, 999, 12_345, 8e9):
        step = count_step(most)
        assert f"{step:e}"[0] in "125"
        assert 1 <= len(steps_up_to(most, step)) - 1 <= 4
    for most in (0.05, 1, 61, 3599, 86_401, 5e6):
        assert 2 <= len(steps_up_to(most, time_step(most))) <= 7
    assert steps_up_to(0.3, 0.1) == pytest.approx([0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "0.25 s"),
        (9.5, "9.5 s"),
        (42.4, "42 s"),
        (59.7, "1:00 min"),
        (185, "3:05 min"),
        (7500, "2:05 h"),
        (86_400, "1 d"),
        (273_600, "3 d 4 h"),
    ],
)
def test_times_read_well(seconds: float, text: str) -> None:
    assert elapsed(seconds) == text


def test_sizes_and_counts_read_well() -> None:
    assert [round_bytes(n) for n in (512 * MIB, 1 << 30, 3 << 29)] == [
        "512 MiB",
        "1 GiB",
        "1.5 GiB",
    ]
    counts = [short_count(n) for n in (0, 9999, 12_345, 3_200_000, 5e9)]
    assert counts == ["0", "9,999", "12.3 k", "3.2 M", "5 G"]
