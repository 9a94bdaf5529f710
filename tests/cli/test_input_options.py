"""What the texts of ``overspill build`` mean, and how a person learns it."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

import overspill as ov
from overspill.build import Columns
from overspill.cli.inputs import arrays_by_type, fills, id_columns
from typed_command import in_a_process as command

BUYS = ("user", "buys", "item")


@pytest.mark.parametrize(
    "told",
    [
        "[SOURCE:RELATION:TARGET=]FILE",
        "[TYPE.]NAME=FILE::COLUMN,...[@KEY]",
        "NAME=::COLUMN,...",
        "[SOURCE:RELATION:TARGET=]FROM,TO",
    ],
)
def test_help_shows_every_form_whole_on_a_narrow_screen(told: str) -> None:
    assert told in command("build", "--help", columns=80).stdout


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ([], None),
        (["a,b"], ("a", "b")),
        (["user:buys:item=a,b"], {BUYS: ("a", "b")}),
    ],
)
def test_columns_of_ids(texts: list[str], wanted: object) -> None:
    assert id_columns(texts) == wanted


@pytest.mark.parametrize(
    "texts",
    [["a,b", "c,d"], ["a,b", "user:buys:item=a,b"], ["user:buys:item=a,b", "user:buys:item=c,d"]],
)
def test_columns_of_ids_that_contradict(texts: list[str]) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        id_columns(texts)
    assert caught.value.param_hint == "--columns"


def test_fills_reach_their_arrays() -> None:
    filled = fills(["x=-1", "user.y=0.5", "user.z=true"])
    assert filled == {"x": -1, "user.y": 0.5, "user.z": True}
    held = arrays_by_type(
        ["user.y=n.csv::a,b@id", "user.z=n.csv::ok@id"],
        {"user.y": 0.5, "user.z": True},
        option="--node-features",
    )
    assert held == {
        "user": {
            "y": Columns(["a", "b"], of="n.csv", key="id", fill=0.5),
            "z": Columns("ok", of="n.csv", key="id", fill=True),
        }
    }


@pytest.mark.parametrize("name", ["y", "user.x", "z"])
def test_a_fill_that_no_array_takes(name: str) -> None:
    texts = ["x=n.csv::a@id", "z=z.npy"]
    with pytest.raises(typer.BadParameter, match=repr(name)) as caught:
        arrays_by_type(texts, {"x": 0, name: 0}, option="--node-features")
    assert caught.value.param_hint == "--fill"


def test_columns_of_several_types(tmp_path: Path) -> None:
    (tmp_path / "buys.csv").write_text("t,u,i\n7,0,1\n8,1,0\n")
    (tmp_path / "likes.csv").write_text("who,whom,t\n1,0,9\n")
    command(
        "build",
        *("--edges", f"user:buys:item={tmp_path / 'buys.csv'}"),
        *("--edges", f"user:likes:user={tmp_path / 'likes.csv'}"),
        *("--columns", "user:buys:item=u,i", "--columns", "user:likes:user=who,whom"),
        *("--edge-features", "user:buys:item.t=::t", "--out", tmp_path / "out"),
    )
    dataset = ov.open_dataset(tmp_path / "out")
    assert dataset.topology(BUYS).indices.tolist() == [1, 0]
    assert dataset.edge_features("t", BUYS).tolist() == [8, 7]
    assert dataset.topology(("user", "likes", "user")).indptr.tolist() == [0, 1, 1]
