from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from overspill.errors import InputError
from overspill.graph.dataset import Dataset, open_dataset
from overspill.graph.sampling import SamplingSpec, check_fan_outs, fan_outs_for
from typed_graphs import shop, write_typed

BUYS = ("user", "buys", "item")


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    shop(tmp_path)
    return open_dataset(tmp_path)


def one_type(path: Path, node: dict[str, np.ndarray], edge: dict[str, np.ndarray]) -> Dataset:
    ends = np.array([1, 2]), np.array([0, 0])
    write_typed(path, {"n": (3, node)}, {("n", "r", "n"): (*ends, edge)})
    return open_dataset(path)


def test_bad_fan_outs_are_refused() -> None:
    bad: list[object] = [[], 5, None, "15", [1.5], [True], [-2], [2**31], ["3"], [[1]], {"a": [1]}]
    for fan_outs in bad:
        with pytest.raises(InputError, match=r"num_neighbors|fan-out"):
            check_fan_outs(fan_outs)  # type: ignore[arg-type]


def test_good_fan_outs_pass() -> None:
    assert check_fan_outs([np.int64(3), -1, 0]) == (3, -1, 0)
    assert check_fan_outs((4,)) == (4,)


def test_a_list_is_for_every_edge_type_in_the_order_of_the_dataset(ds: Dataset) -> None:
    held = fan_outs_for(ds, [4, -1])
    assert list(held) == ds.edge_types and set(held.values()) == {(4, -1)}
    given = {key: [number] for number, key in enumerate(reversed(ds.edge_types))}
    assert list(fan_outs_for(ds, given).items()) == [(key, (3 - n,)) for n, key in enumerate(held)]


def test_fan_outs_by_type_name_each_type_there_is_and_no_other(ds: Dataset) -> None:
    fans = {key: [2, 2] for key in ds.edge_types}
    with pytest.raises(InputError, match=r"no edge type .*sells") as unknown:
        fan_outs_for(ds, fans | {("user", "sells", "item"): [2, 2]})
    assert "buys" in str(unknown.value)
    with pytest.raises(InputError, match=r"lists of different lengths: .*buys.*: 3"):
        fan_outs_for(ds, fans | {BUYS: [1, 1, 1]})
    del fans[BUYS]
    with pytest.raises(InputError, match=r"no fan-outs for edge type .*buys.*give \[0, 0\]"):
        fan_outs_for(ds, fans)


def test_a_specification_that_means_nothing_is_refused() -> None:
    options: dict[str, object]
    for options, message in (
        ({"num_neighbors": {}}, "names no edge type"),
        ({"num_neighbors": [1]}, "must map edge types"),
        ({"num_neighbors": {BUYS: (1,), ("a", "b", "c"): (1, 2)}}, "different lengths"),
        ({"num_neighbors": {BUYS: (-5,)}}, "fan-out of hop 0"),
        ({"replace": 1}, "replace=1 is neither"),
        ({"disjoint": None}, "disjoint=None"),
        ({"weight": 7}, "weight=7 is no name"),
        ({"time": "t", "temporal_strategy": "first"}, "'first' is unknown"),
        ({"temporal_strategy": "last"}, "no time is named"),
        ({"temporal_strategy": "last", "time": "t", "weight": "w"}, "whatever their weights"),
    ):
        with pytest.raises(InputError, match=message):
            SamplingSpec(**{"num_neighbors": {BUYS: (1,)}} | options)  # type: ignore[arg-type]


def test_what_the_dataset_lacks_is_named(ds: Dataset) -> None:
    options: dict[str, object]
    for options, message in (
        ({"weight": "heavy"}, "weight='heavy': no array of that name.*one of: t, w;"),
        ({"time": "when"}, "time='when': no array of that name.*one of: t, w;"),
        ({"num_neighbors": {("user", "sells", "item"): (1,)}}, "no edge type"),
    ):
        spec = SamplingSpec(**{"num_neighbors": fan_outs_for(ds, [1])} | options)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=message):
            ds.sampler(spec)


@pytest.mark.parametrize("option", ["time", "weight"])
def test_times_and_weights_are_numbers_one_each(tmp_path: Path, option: str) -> None:
    good = {"time": "bhilBHI", "weight": "bhilBHILefd"}[option]
    for code in "?bhilBHILefdF":
        values = np.zeros(2, code)
        ds = one_type(tmp_path / f"{ord(code)}", {}, {"v": values})
        spec = SamplingSpec(num_neighbors=fan_outs_for(ds, [1]), **{option: "v"})  # type: ignore[arg-type]
        if code in good:
            ds.sampler(spec)
            continue
        with pytest.raises(InputError, match=f"{option}s 'v' of edge type .* are {values.dtype}"):
            ds.sampler(spec)
    ds = one_type(tmp_path / "wide", {}, {"v": np.zeros((2, 1), np.int64)})
    spec = SamplingSpec(num_neighbors=fan_outs_for(ds, [1]), **{option: "v"})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"are int64 \(2, 1\)"):
        ds.sampler(spec)


def test_a_time_of_nodes_and_edges_alike_is_refused(tmp_path: Path) -> None:
    ds = one_type(tmp_path, {"t": np.arange(3)}, {"t": np.arange(2)})
    with pytest.raises(InputError, match="of nodes and of edges"):
        ds.sampler(SamplingSpec(num_neighbors=fan_outs_for(ds, [1]), time="t"))


def test_options_stand_in_one_place(ds: Dataset) -> None:
    spec = SamplingSpec(num_neighbors=fan_outs_for(ds, [1]))
    for options in ({"replace": True}, {"edge_type": BUYS}):
        with pytest.raises(InputError, match="stand beside a SamplingSpec"):
            ds.sampler(spec, **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="leave one of the two out"):
        ds.sampler({BUYS: [1]}, BUYS)
    with pytest.raises(InputError, match="no edge type"):
        ds.sampler([1], ("user", "sells", "item"))
