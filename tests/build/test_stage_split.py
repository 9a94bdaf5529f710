"""Staging a split of the input: what it tells of a number that it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from overspill.build.parting.split_spec import OwnersSpec, SplitSpec, Window
from overspill.build.parting.stage_split import opened_window, stage_split
from overspill.build.spec import ArraySpec, EdgeSpec
from overspill.errors import InputError

ROWS, GROUP, WRONG = 12, 4, 9


@pytest.mark.parametrize(
    ("name", "groups"), [("e.parquet", (0, None)), ("e.parquet", (1, 3)), ("e.csv", (0, None))]
)
def test_a_number_that_is_not_finite_is_told_by_its_row_in_the_file(
    tmp_path: Path, name: str, groups: tuple[int, int | None]
) -> None:
    weights = np.arange(ROWS, dtype=np.float64)
    weights[WRONG] = np.inf
    table = pa.table({"src": np.zeros(ROWS, int), "dst": np.zeros(ROWS, int), "w": weights})
    path = tmp_path / name
    if path.suffix == ".csv":
        pc.write_csv(table, path)
    else:
        pq.write_table(table, path, row_group_size=GROUP)
    stat, owners = path.stat(), OwnersSpec(count=1, num_parts=1, bounds=(0, 1))
    first, last = groups
    window = Window(
        path=str(path),
        nbytes=stat.st_size,
        modified_ns=stat.st_mtime_ns,
        first=first,
        last=last,
        first_row=first * GROUP,
    )
    spec = SplitSpec(
        number=0,
        plan="",
        edge=EdgeSpec(columns=("src", "dst"), arrays={"w": ArraySpec(columns=("w",))}),
        windows=(window,),
        sources=owners,
        targets=owners,
        layouts=("csc",),
        edge_ids=True,
        rows=ROWS,
        non_finite="error",
        arrays={"w": None},
    )
    with pytest.raises(InputError, match="not finite") as refused:
        stage_split(spec, tmp_path)
    # As the ids of the same edge are told.
    assert refused.value.row == opened_window(window, spec).locate(WRONG - first * GROUP)
    assert sorted(tmp_path.iterdir()) == [path]
