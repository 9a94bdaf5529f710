from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overspill.build.readers.edges import open_edges
from overspill.build.readers.features import open_features
from overspill.build.readers.npy import NpyReader, bits_dtype, named_bits, read_npy_header
from overspill.build.readers.source import SourceFile
from overspill.build.spec import EdgeSpec
from overspill.errors import InputError


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i8", ">i4", "<f4", "|b1"])
def test_elements_come_as_they_lie(tmp_path: Path, order: str, dtype: str) -> None:
    numbers = np.random.default_rng(7).integers(0, 100, (20, 3, 2))
    array = np.asarray(numbers, dtype=dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    file = read_npy_header(SourceFile.check(str(tmp_path / "a.npy")))
    assert file.shape == array.shape and file.dtype == np.dtype(dtype)
    assert file.fortran == (order == "F")
    with NpyReader(file) as reader:
        out = np.empty(11, dtype)
        reader.elements(5, out)
    assert np.array_equal(out, array.reshape(-1, order=order)[5:16])


def test_header_version_2_is_read(tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(6).reshape(2, 3), version=(2, 0))
    assert read_npy_header(SourceFile.check(str(tmp_path / "a.npy"))).shape == (2, 3)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("cut", "where its header says"),
        ("longer", "where its header says"),
        ("raw", "not a .npy file"),
        ("empty", "not a .npy file"),
        ("version", "version"),
        ("header", "damaged"),
        ("objects", "not numbers"),
        ("records", "not numbers"),
        ("missing", "cannot read"),
    ],
)
def test_what_is_not_an_array_is_refused(tmp_path: Path, how: str, text: str) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(10))
    content = path.read_bytes()
    changed = {
        "cut": content[:-1],
        "longer": content + b"x",
        "raw": np.arange(10).tobytes(),
        "empty": b"",
        "version": content[:6] + bytes([9, 0]) + content[8:],
        "header": content.replace(b"'descr'", b"'dEscr'"),
    }
    if how in changed:
        path.write_bytes(changed[how])
    elif how == "objects":
        np.save(path, np.array([{"a": 1}]), allow_pickle=True)
    elif how == "records":
        np.save(path, np.zeros(3, [("a", "i4")]))
    else:
        path.unlink()
    with pytest.raises(InputError, match=text) as caught:
        read_npy_header(SourceFile.check(str(path)))
    assert caught.value.path == str(path)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2"])
def test_a_type_that_numpy_lacks_is_told_by_its_one_field(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 5), bits_dtype(name)))
    source = SourceFile.check(str(tmp_path / "a.npy"))
    file = read_npy_header(source)
    assert file.type_name == name and file.dtype == bits_dtype(name)[0]
    assert open_features(str(tmp_path / "a.npy"), "x").type_name == name
    with pytest.raises(InputError, match=f"must be integers.*holds {name}"):
        open_edges(source, EdgeSpec(paths=(source.path,)))


@pytest.mark.parametrize(
    "fields", [[("bfloat16", "<u4")], [("bfloat16", "<i2")], [("int16", "<i2")], [("x", "<u2")]]
)
def test_other_fields_are_records(tmp_path: Path, fields: list[tuple[str, str]]) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3, fields))
    assert named_bits(np.dtype(fields)) is None
    with pytest.raises(InputError, match="not numbers"):
        read_npy_header(SourceFile.check(str(tmp_path / "a.npy")))
