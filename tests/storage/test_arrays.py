from __future__ import annotations

import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from overspill.errors import DiskRefusedError, FormatError, StaleFileError
from overspill.storage import write_behind
from overspill.storage.arrays import (
    ArrayWriter,
    encode_header,
    map_array,
    partial_path,
    read_array_info,
)
from overspill.storage.json_files import not_understood
from overspill.storage.records import STORED_DTYPES, FileRecord, numpy_view_dtype


def write(path: Path, array: np.ndarray, *, dtype: str | None = None, rows: int = 3) -> FileRecord:
    with ArrayWriter(path, dtype=dtype or array.dtype.name, shape=array.shape) as writer:
        for start in range(0, max(len(array), 1), rows):
            writer.append(array[start : start + rows])
    return writer.result


@pytest.mark.parametrize("dtype", [name for name in STORED_DTYPES if "8_e" not in name])
@pytest.mark.parametrize("shape", [(7, 3), (0, 128), (1,), (5, 2, 2)])
def test_safetensors_reads_what_is_written(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    bits = np.random.default_rng(1).integers(0, 2, shape).astype(numpy_view_dtype(dtype))
    record = write(tmp_path / "a.safetensors", bits, dtype=dtype)
    loaded = safetensors.torch.load_file(tmp_path / "a.safetensors")["data"]
    assert str(loaded.dtype) == f"torch.{dtype}" and tuple(loaded.shape) == shape
    mapping, view = map_array(tmp_path / "a.safetensors", record)
    assert view.shape == shape and np.array_equal(view, bits)
    if dtype != "bfloat16":
        assert np.array_equal(loaded.numpy(), bits)
    info = read_array_info(tmp_path / "a.safetensors")
    assert info.payload_offset % 4096 == 0 and info.nbytes == record.nbytes == mapping.nbytes
    del view, mapping


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_types_that_numpy_lacks_are_kept_as_bits(tmp_path: Path, dtype: str) -> None:
    tensor = torch.tensor([0.5, -2.0, 1.0]).to(getattr(torch, dtype))
    bits = tensor.view(torch.uint16 if dtype == "bfloat16" else torch.uint8).numpy()
    write(tmp_path / "a.safetensors", bits, dtype=dtype)
    loaded = safetensors.torch.load_file(tmp_path / "a.safetensors")["data"]
    assert loaded.dtype == tensor.dtype and torch.equal(loaded.float(), tensor.float())


def test_the_digest_is_of_the_payload(tmp_path: Path) -> None:
    record = write(tmp_path / "a.safetensors", np.arange(10))
    content = (tmp_path / "a.safetensors").read_bytes()
    assert record.sha256 == hashlib.sha256(content[4096:]).hexdigest()
    assert content[:4096] == encode_header("int64", (10,)) and record.nbytes == len(content)


def test_what_was_written_is_told_once_it_is_there(tmp_path: Path) -> None:
    writer = ArrayWriter(tmp_path / "a.safetensors", dtype="int64", shape=(1,))
    with pytest.raises(KeyError), writer:
        raise KeyError
    assert not writer.published
    with pytest.raises(FormatError, match=r"a\.safetensors was not finished; remedy: write"):
        _ = writer.result


@pytest.mark.parametrize(
    "changed", [{"dtype": "text"}, {"shape": [2**62]}, {"path": "../a"}, {"path": "a\ud800"}, {}]
)
def test_a_damaged_record_is_refused_with_one_remedy(
    tmp_path: Path, changed: dict[str, object]
) -> None:
    held = write(tmp_path / "a.safetensors", np.arange(10)).to_json() | changed
    if not changed:
        del held["nbytes"]
    with pytest.raises(FormatError) as caught:
        FileRecord.from_json(held)
    assert caught.value.remedy
    assert str(not_understood(tmp_path, caught.value)).count("remedy: ") == 1


@pytest.mark.parametrize("rows", [0, 1, 999, 1000])
def test_fewer_rows_than_at_most(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "a.safetensors"
    with ArrayWriter(path, dtype="int32", shape=(1000, 700), at_most=True) as writer:
        values = np.arange(rows * 700, dtype=np.int32).reshape(rows, 700)
        writer.append(values)
    assert writer.result.shape == (rows, 700)
    assert np.array_equal(safetensors.numpy.load_file(path)["data"], values)
    status = path.stat()
    assert status.st_size == 4096 + values.nbytes == writer.result.nbytes
    assert status.st_blocks * 512 <= status.st_size + 8192  # what was reserved is given back


@pytest.mark.parametrize("elements", [1, 7, 15])
def test_a_part_of_a_row_is_refused(tmp_path: Path, elements: int) -> None:
    with (
        pytest.raises(ValueError, match="bytes were written"),
        ArrayWriter(tmp_path / "a", dtype="int32", shape=(5, 2, 4), at_most=True) as writer,
    ):
        writer.append(np.zeros(elements, np.int32))
    assert list(tmp_path.iterdir()) == []


def test_a_private_mapping_never_reaches_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", np.arange(10))
    _, view = map_array(tmp_path / "a.safetensors")
    view[:] = -1
    _, again = map_array(tmp_path / "a.safetensors")
    assert np.array_equal(again, np.arange(10))


def test_windows_are_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "_WINDOW_BYTES", 4096)
    monkeypatch.setattr(write_behind, "_PIECE_BYTES", 1024)
    values = np.random.default_rng(2).integers(0, 9, 50_000)
    write(tmp_path / "a.safetensors", values, rows=777)
    assert np.array_equal(safetensors.numpy.load_file(tmp_path / "a.safetensors")["data"], values)


class Interrupted(Exception):
    pass


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(Interrupted),
        ArrayWriter(tmp_path / "a.safetensors", dtype="int64", shape=(9,)) as writer,
    ):
        writer.append(np.arange(3))
        raise Interrupted
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (np.arange(5), "bytes were written"),
        (np.arange(10), "more rows"),
        (np.arange(9, dtype=np.int32), "int32 rows"),
    ],
)
def test_wrong_rows_are_refused_and_leave_nothing(
    tmp_path: Path, rows: np.ndarray, text: str
) -> None:
    with (
        pytest.raises(ValueError, match=text),
        ArrayWriter(tmp_path / "a.safetensors", dtype="int64", shape=(9,)) as writer,
    ):
        writer.append(rows)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_reservation_leaves_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskRefusedError),
        ArrayWriter(tmp_path / "a.safetensors", dtype="int64", shape=(2**55,)),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("owner", "name", "nth"),
    [(os, "fsync", 1), (os, "fsync", 2), (os, "close", 1), (os, "close", 2), (Path, "rename", 1)],
    ids=["fsync", "fsync of the directory", "close", "close of the directory", "rename"],
)
def test_each_failing_step_of_publishing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, nth: int
) -> None:
    real, calls = getattr(owner, name), itertools.count(1)

    def refuse(*arguments: Any) -> Any:
        done = real(*arguments) if name == "close" else None  # closed even where it says no
        if next(calls) == nth:
            raise OSError(5, "Input/output error")
        return done if name == "close" else real(*arguments)

    with (
        pytest.raises(DiskRefusedError) as caught,
        monkeypatch.context() as patch,
        ArrayWriter(tmp_path / "a.safetensors", dtype="int64", shape=(1,)) as writer,
    ):
        writer.append(np.arange(1))
        patch.setattr(owner, name, refuse)
    assert caught.value.errno == 5 and list(tmp_path.iterdir()) == []


def test_an_existing_partial_file_is_not_overwritten(tmp_path: Path) -> None:
    partial_path(tmp_path / "a.safetensors").write_bytes(b"someone's")
    with (
        pytest.raises(DiskRefusedError),
        ArrayWriter(tmp_path / "a.safetensors", dtype="int64", shape=(1,)),
    ):
        pass
    assert partial_path(tmp_path / "a.safetensors").read_bytes() == b"someone's"


def damaged(content: bytes, how: str) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    entry = header["data"]
    if how == "long header":
        return (1 << 62).to_bytes(8, "little") + content[8:]
    if how == "short file":
        return content[:5]
    if how == "not json":
        return content[:8] + b"?" + content[9:]
    if how == "negative shape":
        entry["shape"] = [-1, -80]
    if how == "huge shape":
        entry["shape"] = [2**62, 2**62]
    if how == "unknown dtype":
        entry["dtype"] = "Q7"
    if how == "offsets":
        entry["data_offsets"] = [8, 88]
    if how == "second tensor":
        header["more"] = entry
    if how == "bool shape":
        entry["shape"] = [True, 10]
    text = json.dumps(header).encode().ljust(length)
    return content[:8] + text + content[8 + length :]


@pytest.mark.parametrize(
    "how",
    [
        "long header",
        "short file",
        "not json",
        "negative shape",
        "huge shape",
        "unknown dtype",
        "offsets",
        "second tensor",
        "bool shape",
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.safetensors"
    write(path, np.arange(10))
    path.write_bytes(damaged(path.read_bytes(), how))
    with pytest.raises(FormatError):
        map_array(path)


@pytest.mark.parametrize("change", [-1, 1])
def test_another_size_is_stale(tmp_path: Path, change: int) -> None:
    path = tmp_path / "a.safetensors"
    record = write(path, np.arange(10))
    content = path.read_bytes()
    path.write_bytes(content[:-1] if change < 0 else content + b"x")
    with pytest.raises(StaleFileError) as caught:
        read_array_info(path)
    assert caught.value.needed_bytes == record.nbytes
    assert caught.value.available_bytes == record.nbytes + change


def test_a_missing_or_replaced_file_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(StaleFileError):
        read_array_info(path)
    assert not path.exists()
    record = write(path, np.arange(10))
    path.unlink()
    write(path, np.arange(11))
    with pytest.raises(StaleFileError, match="recorded"):
        map_array(path, record)
