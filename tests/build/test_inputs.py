"""Inputs that must work, each against the plainest way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from naive import TINY, build_here, read_built, require_naive
from overspill.build.construct import construct
from overspill.build.describe import describe_build
from overspill.build.inputs import Inputs
from overspill.build.readers import snap_edges

DATA = Path(__file__).resolve().parents[1] / "data"
EDGES = np.random.default_rng(8).integers(0, 30, (2, 200))


def write_text(path: Path, content: str) -> Path:
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize("dtype", ["i1", "u1", "<i4", ">i4", "<u4", "<i8", ">i8", "<u8", ">u8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, 1])
def test_npy_of_any_integer_type_and_order(
    tmp_path: Path, dtype: str, order: str, axis: int
) -> None:
    array = EDGES if axis == 1 else EDGES.T
    np.save(tmp_path / "e.npy", np.asarray(array, dtype=dtype, order=order))
    built = build_here(tmp_path / "out", edges=tmp_path / "e.npy")
    require_naive(built, *EDGES, int(EDGES.max()) + 1)


def test_npy_with_header_version_2(tmp_path: Path) -> None:
    with (tmp_path / "e.npy").open("wb") as file:
        np.lib.format.write_array(file, EDGES, version=(2, 0))
    require_naive(build_here(tmp_path / "out", edges=tmp_path / "e.npy"), *EDGES, 30)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_square_array_is_read_as_told(tmp_path: Path, axis: int) -> None:
    array = np.array([[0, 1], [2, 3]])
    np.save(tmp_path / "e.npy", array)
    built = build_here(tmp_path / "out", edges=tmp_path / "e.npy", edge_axis=axis)
    require_naive(built, *(array if axis == 1 else array.T), 4)


def csv_text(header: str, *, end: str = "\n", last: str = "\n") -> str:
    return header + end + end.join(f"{s},{t}" for s, t in EDGES.T.tolist()) + last


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (csv_text("src,dst"), {}),
        (csv_text("from,to"), {}),
        (csv_text("from,to"), {"columns": ("from", "to")}),
        (csv_text("src,dst", end="\r\n", last=""), {}),
        ("\ufeff" + csv_text("src,dst"), {}),
        (csv_text('"the ""source""",dst'), {"columns": ('the "source"', "dst")}),
        (csv_text("src,dst").replace("\n", "\n\n"), {}),
        (csv_text("src,dst", end="\r", last="\r"), {}),
    ],
    ids=[
        "plain",
        "two columns",
        "named",
        "CRLF, no end",
        "byte order mark",
        "quoted",
        "blank lines",
        "CR",
    ],
)
def test_csv(tmp_path: Path, text: str, options: dict[str, Any]) -> None:
    path = write_text(tmp_path / "e.csv", text)
    require_naive(build_here(tmp_path / "out", edges=path, **options), *EDGES, 30)


def test_csv_columns_in_any_place(tmp_path: Path) -> None:
    lines = [f"{t},x y,{s},2.5" for s, t in EDGES.T.tolist()]
    path = write_text(tmp_path / "e.csv", "\n".join(["dst,name,src,weight", *lines]))
    require_naive(build_here(tmp_path / "out", edges=path), *EDGES, 30)


def test_csv_in_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overspill.build.readers.csv_stream._BLOCK_BYTES", 64)
    path = write_text(tmp_path / "e.csv", csv_text("src,dst"))
    require_naive(build_here(tmp_path / "out", edges=path), *EDGES, 30)


@pytest.mark.parametrize("block_bytes", [1 << 20, 64])
@pytest.mark.parametrize(
    "cell",
    ['"of two\nlines"', '"of ""two""\r\n\r\nlines"', '5" of pipe', "0x1f", "caf\udce9", '""'],
)
def test_csv_with_cells_of_every_kind_beside_the_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, cell: str
) -> None:
    """The first cell is plain, so that the odd ones also lie beyond the first block."""
    monkeypatch.setattr("overspill.build.readers.csv_stream._BLOCK_BYTES", block_bytes)
    lines = [f"{s},{t},{'plain' if n % 7 else cell}" for n, (s, t) in enumerate(EDGES.T.tolist())]
    path = tmp_path / "e.csv"
    path.write_bytes(
        "\n".join(["src,dst,name", *lines[1:], lines[0]]).encode(errors="surrogateescape")
    )
    require_naive(build_here(tmp_path / "out", edges=path), *EDGES, 30)
    path.write_bytes(path.read_bytes() + b"\n")
    require_naive(build_here(tmp_path / "end", edges=path), *EDGES, 30)


def test_a_csv_header_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_bytes(b"src,caf\xe9,dst\n0,\xff,7\n7,,1\n")
    require_naive(build_here(tmp_path / "out", edges=tmp_path / "e.csv"), [0, 7], [7, 1], 8)


def test_padded_ids_in_csv(tmp_path: Path) -> None:
    path = write_text(tmp_path / "e.csv", f"src,dst\n007,{'0' * 30}5\n 5 ,0\n")
    require_naive(build_here(tmp_path / "out", edges=path), [7, 5], [5, 0], 8)


def test_large_ids_in_csv_keep_every_digit(tmp_path: Path) -> None:
    path = write_text(tmp_path / "e.csv", "src,dst\n4873214862074861312,4873214862074861313\n")
    built = build_here(tmp_path / "out", edges=path, ids="remap")
    assert built.ids is not None
    assert built.ids.tolist() == [4873214862074861312, 4873214862074861313]


@pytest.mark.parametrize("block_bytes", [1 << 20, 997])
def test_the_as_graph_as_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(snap_edges, "_BLOCK_BYTES", block_bytes)
    # As many times larger than TINY as the graph is than the others here: as much is at work.
    plan = replace(
        TINY,
        chunk_edges=700,
        block_bytes=6400,
        bucket_bytes=200 << 10,
        run_ids=800,
        copy_bytes=6400,
    )
    built = build_here(tmp_path / "out", plan=plan, edges=DATA / "as20graph.txt")
    raw = np.loadtxt(DATA / "as20graph.txt", dtype=np.int64)
    ids, dense = np.unique(raw, return_inverse=True)
    assert len(raw) == 26467 and len(ids) == 6474
    assert np.array_equal(built.ids, ids)
    require_naive(built, *dense.reshape(raw.shape).T, 6474)


@pytest.mark.parametrize(
    "text",
    [
        "# a\r\n# b\r\n5\t7\r\n\r\n7\t5\r\n",
        "5 7\n   7   5",
        "#5 6\n5 7 0.5 1999\n# in between\n7\t \t5\n\n\n",
        "# a\r5 7\r\r7 5\r",
        "5 7\r# b\r7 5",
        "\ufeff# a\n5 7\n7 5\n",
        "\ufeff5 7\n00000000000000000000007 05\n",
    ],
)
@pytest.mark.parametrize("block_bytes", [1 << 20, 7, 8, 9])
def test_snap_text_of_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, block_bytes: int
) -> None:
    monkeypatch.setattr(snap_edges, "_BLOCK_BYTES", block_bytes)
    built = build_here(tmp_path / "out", edges=write_text(tmp_path / "e.txt", text))
    assert built.ids is not None and built.ids.tolist() == [5, 7]
    require_naive(built, [0, 1], [1, 0], 2)


def test_snap_text_stays_dense_when_told(tmp_path: Path) -> None:
    path = write_text(tmp_path / "e.txt", "0 2\n2 0\n")
    for number, options in enumerate(({"ids": "dense"}, {"num_nodes": 3})):
        built = build_here(tmp_path / f"out{number}", edges=path, **options)
        assert built.ids is None
        require_naive(built, [0, 2], [2, 0], 3)


def test_hash_ids_with_the_extremes(tmp_path: Path) -> None:
    raw = np.array([0, -1, -(2**63), 2**63 - 1, 5, 5, -1, 0]).reshape(2, 4)
    np.save(tmp_path / "e.npy", raw)
    built = build_here(tmp_path / "out", edges=tmp_path / "e.npy", ids="remap")
    ids, dense = np.unique(raw, return_inverse=True)
    assert np.array_equal(built.ids, ids)
    require_naive(built, *dense.reshape(2, 4), len(ids))


@pytest.mark.parametrize("narrow", [29, 30])
@pytest.mark.parametrize("ids", ["dense", "remap"])
@pytest.mark.parametrize("known", [True, False])
def test_as_many_nodes_as_no_32_bits_can_count(
    tmp_path: Path, ids: Literal["dense", "remap"], known: bool, narrow: int
) -> None:
    """Every mechanism with 8-byte ids: overfull ranges and a long row too."""
    edges = np.concatenate([EDGES, [np.arange(30), np.full(30, 3)], [[29, 0], [0, 29]]], 1)
    np.save(tmp_path / "e.npy", edges)
    plan, count = replace(TINY, narrow_nodes=narrow), 30 if known else None
    built = build_here(
        tmp_path / "out", plan=plan, edges=tmp_path / "e.npy", ids=ids, num_nodes=count
    )
    wide = narrow < 30
    assert built.indices.dtype == (np.int64 if wide else np.int32)
    built = replace(built, indices=built.indices.astype(np.int32))
    require_naive(built, *edges, 30)


def test_several_files_of_several_kinds(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", EDGES)
    write_text(tmp_path / "b.csv", "src,dst\n29,0\n")
    write_text(tmp_path / "c.txt", "# c\n0 29\n")
    paths = [tmp_path / name for name in ("a.npy", "b.csv", "c.txt")]
    built = build_here(tmp_path / "out", edges=paths, ids="dense")
    require_naive(built, np.r_[EDGES[0], 29, 0], np.r_[EDGES[1], 0, 29], 30)
    assert [Path(source["path"]).name for source in built.manifest.sources] == [
        "a.npy",
        "b.csv",
        "c.txt",
    ]


def test_sources_are_told_as_they_were_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", EDGES)
    np.save(tmp_path / "x.npy", np.zeros((30, 2)))
    sizes = [(tmp_path / name).stat().st_size for name in ("e.npy", "x.npy")]
    spec = describe_build(
        tmp_path / "out", edges=tmp_path / "e.npy", node_features={"x": tmp_path / "x.npy"}
    )

    def take_away(event: dict[str, Any]) -> None:
        if event["phase"] == "publish":
            for name in ("e.npy", "x.npy"):
                (tmp_path / name).unlink(missing_ok=True)

    construct(spec, TINY, inputs=Inputs.open(spec), send=take_away)
    sources = read_built(tmp_path / "out").manifest.sources
    assert [source["nbytes"] for source in sources] == sizes


@pytest.mark.parametrize("shape", [(2, 0), (0, 2)])
def test_no_edges_at_all(tmp_path: Path, shape: tuple[int, int]) -> None:
    np.save(tmp_path / "e.npy", np.empty(shape, np.int64))
    for count in (0, 5, 100):
        built = build_here(tmp_path / f"out{count}", edges=tmp_path / "e.npy", num_nodes=count)
        require_naive(built, [], [], count)
    for number, header in enumerate(("src,dst\n", "src,dst", "\ufeffsrc,dst\r", "src,dst\n\n")):
        path = write_text(tmp_path / "e.csv", header)
        require_naive(build_here(tmp_path / f"csv{number}", edges=path, num_nodes=5), [], [], 5)


def test_isolated_nodes_at_the_end(tmp_path: Path) -> None:
    write_text(tmp_path / "e.csv", "src,dst\n0,7\n7,1\n")
    built = build_here(tmp_path / "out", edges=tmp_path / "e.csv", num_nodes=10)
    assert len(built.indptr) == 11
    require_naive(built, [0, 7], [7, 1], 10)


def test_sources_beyond_every_target(tmp_path: Path) -> None:
    """The rows after the last target are many times what was seen of targets."""
    np.save(tmp_path / "e.npy", np.array([[1000, 3], [0, 1]]))
    built = build_here(tmp_path / "out", edges=tmp_path / "e.npy", edge_axis=1)
    require_naive(built, [1000, 3], [0, 1], 1001)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("<f4", (30, 5)),
        (">f8", (30, 5)),
        ("<f2", (30, 3, 2)),
        ("<i8", (30,)),
        ("|b1", (30, 40)),
        ("<c8", (30, 2)),
        ("<u2", (30, 0)),
    ],
)
def test_node_arrays(tmp_path: Path, order: str, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(9).integers(0, 9, shape), dtype=dtype, order=order)
    np.save(tmp_path / "e.npy", EDGES)
    np.save(tmp_path / "x.npy", array)
    built = build_here(
        tmp_path / "out", edges=tmp_path / "e.npy", node_features={"x": tmp_path / "x.npy"}
    )
    found = built.arrays["x"]
    assert found.dtype == array.dtype.newbyteorder("<") and np.array_equal(found, array)


def test_node_arrays_give_the_number_of_nodes(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", EDGES)
    np.save(tmp_path / "x.npy", np.zeros((44, 2)))
    np.save(tmp_path / "y.npy", np.zeros(44))
    built = build_here(
        tmp_path / "out",
        edges=tmp_path / "e.npy",
        node_features={"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"},
    )
    require_naive(built, *EDGES, 44)


def test_no_nodes_with_wide_features(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.empty((2, 0), np.int64))
    np.save(tmp_path / "x.npy", np.empty((0, 128), np.float32))
    built = build_here(
        tmp_path / "out", edges=tmp_path / "e.npy", node_features={"x": tmp_path / "x.npy"}
    )
    assert built.arrays["x"].shape == (0, 128) and built.indptr.tolist() == [0]


def test_the_same_input_gives_the_same_bytes_whatever_the_buffers(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", EDGES)
    plans = [TINY, replace(TINY, chunk_edges=64, ranges=16, bucket_bytes=4500)]
    digests = [
        [
            record.sha256
            for record in build_here(
                tmp_path / str(number), plan=plan, edges=tmp_path / "e.npy"
            ).manifest.files()
        ]
        for number, plan in enumerate([*plans, TINY])
    ]
    assert digests[0] == digests[1] == digests[2]
