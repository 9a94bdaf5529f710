"""TFRecord: frames and checksums, lists of every kind, text ids, shards, damage."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overspill.build.readers import tfrecord_stream
from overspill.build.readers.tables import open_table
from overspill.errors import InputError
from reading import edges_of, gathered, opened, place, refused, rows_of
from tf_examples import example, record, records

RNG = np.random.default_rng(6)
IDS = [[int(n) for n in RNG.integers(-(2**63), 2**63 - 1, 200)] for _ in range(2)]
IDS[0][:6] = [0, -1, 127, 128, -(2**63), 2**63 - 1]
FEAT = RNG.random((200, 3)).astype(np.float32)
ROWS = [
    {"src": s, "dst": t, "name": f"user {s}", "feat": f.tolist(), "pair": [s, 7]}
    for s, t, f in zip(*IDS, FEAT, strict=True)
]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.fixture(params=[1 << 20, 5, 97])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord_stream, "_BLOCK_BYTES", request.param)


@pytest.mark.parametrize("name", ["e.tfrecord", "e.tfrecord.gz", "e.tfrecord-00000-of-00002"])
@pytest.mark.parametrize("most", [1, 33, 1 << 16])
@pytest.mark.usefixtures("blocks")
def test_integers(tmp_path: Path, name: str, most: int) -> None:
    content = records(ROWS)
    path = write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    assert edges_of(path, most=most) == (IDS[0], IDS[1])


def test_a_file_that_another_library_wrote(tmp_path: Path) -> None:
    """Two records of the tfrecord package (1.14.6): {"src": i, "dst": i + 1, "feat": [0.5, -2]}."""
    path = write(tmp_path / "e.tfrecord", bytes.fromhex(WRITTEN))
    assert edges_of(path) == ([300, 301], [301, 302])
    assert rows_of(path, ["feat"]).tolist() == [[0.5, -2.0]] * 2


WRITTEN = (
    "36000000000000004f578cef0a340a0d0a0373726312061a040a02ac020a0d0a0364737412061a04"
    "0a02ad020a140a0466656174120c120a0a080000003f000000c00a3c62ef36000000000000004f57"
    "8cef0a340a0d0a0373726312061a040a02ad020a0d0a0364737412061a040a02ae020a140a046665"
    "6174120c120a0a080000003f000000c08e7167cf"
)


@pytest.mark.parametrize(
    ("names", "options"),
    [(("src_id", "dst_id"), {}), (("a", "b"), {"columns": ("a", "b")})],
)
def test_names(tmp_path: Path, names: tuple[str, str], options: dict[str, Any]) -> None:
    rows = [dict(zip(names, ends, strict=True)) for ends in zip(*IDS, strict=True)]
    assert edges_of(write(tmp_path / "e.tfrecord", records(rows)), **options) == tuple(IDS)


def test_two_integers_of_unknown_names_are_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path / "e.tfrecord", records([{"a": 1, "b": 2}]))
    error = refused(path)
    assert "a, b" in str(error) and "columns=" in str(error)


@pytest.mark.parametrize("most", [1, 33, 1 << 16])
@pytest.mark.usefixtures("blocks")
def test_text(tmp_path: Path, most: int) -> None:
    words = ["007", "7", "", "schön", "日本" * 9]
    rows = [{"src": word, "dst": n} for n, word in enumerate(words * 5)]
    path = write(tmp_path / "e.tfrecord", records(rows))
    assert opened(path).text == (True, False)
    assert edges_of(path, most=most) == (words * 5, list(range(25)))


@pytest.mark.parametrize("cells", [[b"a", b"caf\xe9"], [b"a\xc3", b"\xa9b"], [b"a", b"\xa9"]])
def test_bytes_that_are_no_text(tmp_path: Path, cells: list[bytes]) -> None:
    """The second pair is text together, and none of the two by itself."""
    rows = [{"src": "x", "dst": cell} for cell in cells]
    error = refused(write(tmp_path / "e.tfrecord", records(rows)))
    assert place(error)[:2] == (0 if cells[0] == b"a\xc3" else 1, "dst")


def test_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "e.tfrecord", records(ROWS))
    assert np.array_equal(rows_of(path, ["feat"], most_bytes=100), FEAT)
    assert rows_of(path, ["pair"]).tolist() == [[s, 7] for s in IDS[0]]
    assert rows_of(path, ["src"]).tolist() == IDS[0]
    found = rows_of(path, ["dst", "src"])
    assert found.dtype == np.int64 and found.T.tolist() == [IDS[1], IDS[0]]


def test_node_shards_by_key(tmp_path: Path) -> None:
    shards = [records(ROWS[:150]), b"", records(ROWS[150:])]
    paths = [str(write(tmp_path / f"n.tfrecord-{n}", text)) for n, text in enumerate(shards)]
    table = open_table(paths, ["feat"], key="src")
    assert (table.dtype, table.row_shape, table.count) == ("float32", (3,), None)
    assert np.array_equal(gathered(table, 500), FEAT)
    keys = [key for part, *_ in table.keyed_pieces(500) for key in part.tolist()]
    assert keys == IDS[0]


def test_files_of_no_records(tmp_path: Path) -> None:
    assert edges_of(write(tmp_path / "e.tfrecord", b"")) == ([], [])
    assert edges_of(write(tmp_path / "e.tfrecord.gz", gzip.compress(b""))) == ([], [])


@pytest.mark.parametrize("cut", [1, 4, 5, 60])
@pytest.mark.usefixtures("blocks")
def test_a_file_cut_short(tmp_path: Path, cut: int) -> None:
    error = refused(write(tmp_path / "e.tfrecord", records(ROWS)[:-cut]))
    assert error.row == 199 and "cut short" in str(error)
    error = refused(write(tmp_path / "e.tfrecord", records(ROWS[:1])[:-cut]))
    assert error.row == 0 and "cut short" in str(error)


@pytest.mark.parametrize("at", [0, 3, 9, 12, 20, -1])
@pytest.mark.usefixtures("blocks")
def test_a_damaged_record(tmp_path: Path, at: int) -> None:
    before, bad, after = records(ROWS[:60]), bytearray(records(ROWS[60:61])), records(ROWS[61:])
    bad[at] ^= 4
    error = refused(write(tmp_path / "e.tfrecord", before + bytes(bad) + after))
    assert error.row == 60 and "checksum" in str(error)


@pytest.mark.parametrize(
    ("row", "column", "value", "told"),
    [
        ({"src": 1}, "dst", "0", "missing"),
        ({"src": 1, "dst": []}, "dst", "floats", "not int64"),
        ({"src": 1, "dst": [2, 3]}, "dst", "2", "2 values where the first record has 1"),
        ({"src": 1.5, "dst": 2}, "src", "floats", "not int64"),
        ({"src": "a", "dst": 2}, "src", "bytes", "not int64"),
    ],
)
@pytest.mark.usefixtures("blocks")
def test_records_unlike_the_first(
    tmp_path: Path, row: dict[str, Any], column: str, value: str, told: str
) -> None:
    path = write(tmp_path / "e.tfrecord", records([*ROWS[:77], row, *ROWS[77:]]))
    error = refused(path)
    assert place(error) == (77, column, value) and told in str(error) and error.remedy


@pytest.mark.parametrize("payload", [b"\xff", b"\x0a\x05ab", b"\x0f", b"\x0a\x02\x0a\x7f"])
def test_payloads_that_are_no_example(tmp_path: Path, payload: bytes) -> None:
    path = write(tmp_path / "e.tfrecord", record(payload))
    assert place(refused(path))[0] == 0 and "no tf.Example" in str(refused(path))
    path = write(tmp_path / "f.tfrecord", records(ROWS[:3]) + record(payload))
    assert place(refused(path))[0] == 3 and "no tf.Example" in str(refused(path))


def test_a_record_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord_stream, "_MOST_RECORD_BYTES", 1000)
    monkeypatch.setattr(tfrecord_stream, "_BLOCK_BYTES", 500)
    large = {"src": 1, "dst": 2, "x": "x" * 2000}
    error = refused(write(tmp_path / "e.tfrecord", records([*ROWS[:5], large])))
    assert error.row == 5 and "1000" in str(error)


@pytest.mark.parametrize("column", ["feat", "pair", "x"])
def test_features_that_are_no_ids(tmp_path: Path, column: str) -> None:
    path = write(tmp_path / "e.tfrecord", records(ROWS))
    error = refused(path, columns=("src", column))
    assert error.column == column and error.remedy


@pytest.mark.parametrize("names", [["name"], ["src", "pair"], ["src", "feat"], ["x"]])
def test_features_that_are_no_rows(tmp_path: Path, names: list[str]) -> None:
    path = write(tmp_path / "e.tfrecord", records(ROWS))
    with pytest.raises(InputError) as caught:
        rows_of(path, names)
    assert caught.value.column == names[-1]


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def part(number: int, held: bytes, wire: int = 2) -> bytes:
    """A field, with its length where it has one."""
    return varint(number << 3 | wire) + (varint(len(held)) if wire == 2 else b"") + held


def test_what_protocol_buffers_allow(tmp_path: Path) -> None:
    """Unpacked numbers, unknown fields of every wire type, a name twice, a map in two parts."""

    def entry(name: bytes, kind: int, *values: bytes) -> bytes:
        return part(1, part(1, name) + part(9, b"?") + part(2, part(kind, b"".join(values))))

    unknown = part(7, varint(300), 0) + part(8, bytes(8), 1) + part(9, bytes(4), 5) + part(99, b"?")
    first = entry(b"src", 3, part(1, varint(1), 0)) + entry(b"src", 3, part(1, varint(300), 0))
    floats = entry(b"w", 2, part(1, struct.pack("<f", 0.5), 5), part(1, struct.pack("<f", 2), 5))
    second = unknown + entry(b"dst", 3, part(1, b""), part(1, varint(2**64 - 7))) + floats
    held = unknown + part(1, first) + part(1, second) + unknown
    path = write(tmp_path / "e.tfrecord", record(held) + record(example(ROWS[0] | {"w": [1.0, 3]})))
    assert edges_of(path) == ([300, 0], [-7, IDS[1][0]])
    assert rows_of(path, ["w"]).tolist() == [[0.5, 2], [1, 3]]
