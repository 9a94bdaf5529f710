"""CSV files left before their end: Arrow's thread is done with them when they are closed."""

from __future__ import annotations

import gzip
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from confined import PythonResult
from overspill.build.readers import csv_stream
from reading import opened, place, refused

ROWS = 200_000
LEFT_OPEN = """
import sys
from pathlib import Path
from reading import opened

chunks = opened(Path(sys.argv[1])).chunks(1000)
next(chunks)
"""


class SlowStream:
    """A stream each of whose reads lasts until the stream is left, or for a moment."""

    done = 0

    def __init__(self, stream: Any) -> None:
        self.under_way, self.left, self.begun = False, threading.Event(), threading.Event()
        self._stream = stream

    def read(self, most: int) -> bytes:
        self.under_way = True
        self.begun.set()
        self.left.wait(0.1)
        data: bytes = self._stream.read(most)
        self.under_way = False
        return data


def test_a_file_is_closed_when_nothing_reads_it_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "e.csv").write_text("src,dst\n" + "1,2\n" * 10 * ROWS)
    reader, plain = opened(tmp_path / "e.csv"), csv_stream.opened_stream
    streams: list[SlowStream] = []
    overlaps: list[bool] = []

    @contextmanager
    def slow(source: Any) -> Iterator[SlowStream]:
        with plain(source) as stream:
            streams.append(SlowStream(stream))
            try:
                yield streams[-1]
            finally:
                overlaps.append(streams[-1].under_way)
                streams[-1].left.set()

    monkeypatch.setattr(csv_stream, "opened_stream", slow)
    chunks: Any = reader.chunks(10)
    next(chunks)
    streams[0].begun.clear()
    assert streams[0].begun.wait(60)  # ahead of what is wanted
    chunks.close()
    assert overlaps == [False]


def test_a_reader_that_is_left_open_does_not_stop_the_interpreter_s_end(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    text = "src,dst\n" + "".join(f"{row},{row * 7919 % 1000}\n" for row in range(2 * ROWS))
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(text.encode(), 1))
    run_python(LEFT_OPEN, arguments=[tmp_path / "e.csv.gz"], fresh=True).check()


def test_a_wrong_line_that_is_no_text_is_told_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    (tmp_path / "e.csv").write_bytes(b"src,dst\n1,2\n3,4\n5,6,\xff\n7,8\n")
    error = refused(tmp_path / "e.csv")
    assert place(error) == (3, None, "5,6,\ufffd")
    assert "3 columns where the header has 2" in str(error)
    assert ignored == []
