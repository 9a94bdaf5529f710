"""Ids to ranks, over a file of ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from confined import PythonResult, make_cold
from overspill.build.ids import numbers as ids_module
from overspill.build.ids.numbers import IdTranslator
from overspill.errors import FormatError
from overspill.linux.cache import drop_cache
from overspill.storage.arrays import ArrayWriter
from overspill.storage.records import FileRecord

MIB = 1 << 20


def write_ids(path: Path, ids: np.ndarray) -> FileRecord:
    with ArrayWriter(path, dtype="int64", shape=ids.shape) as writer:
        writer.append(ids)
    return writer.result


CASES = {
    "dense": np.arange(5000),
    "hashes": np.unique(np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 5000)),
    "clustered": np.concatenate([np.arange(-3000, 0), [2**62], [2**63 - 1]]),
    "the extremes": np.array([-(2**63), -(2**63) + 1, -1, 0, 2**63 - 2, 2**63 - 1]),
    "one": np.array([7]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("most_blocks", [1 << 18, 3])
@pytest.mark.parametrize("cold", [True, False])
def test_ranks_equal_searchsorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most_blocks: int, cold: bool
) -> None:
    monkeypatch.setattr(ids_module, "_MOST_BLOCKS", most_blocks)  # several pages a block
    monkeypatch.setattr(ids_module, "_WINDOW_PAGES", 900)
    record = write_ids(tmp_path / "ids", CASES[name])
    translator = IdTranslator(tmp_path / "ids", record)
    raw = np.random.default_rng(6).choice(CASES[name], 4000)
    if cold:
        drop_cache(tmp_path / "ids")
    assert np.array_equal(translator.translate(raw), np.searchsorted(CASES[name], raw))
    assert translator.translate(raw[:0]).tolist() == []
    del translator


@pytest.mark.parametrize("stranger", [-1, 1, 4999, 10_000, -(2**63), 2**63 - 1])
def test_an_id_that_was_not_there_before(tmp_path: Path, stranger: int) -> None:
    ids = np.arange(0, 10_000, 2)
    translator = IdTranslator(tmp_path / "ids", write_ids(tmp_path / "ids", ids))
    with pytest.raises(FormatError, match=r"first reading.*remedy: build again once nothing"):
        translator.translate(np.array([0, stranger, 9998]))
    del translator


@pytest.mark.parametrize("name", [*CASES, "none"])
@pytest.mark.parametrize("cold", [True, False])
def test_ids_that_need_not_be_known(tmp_path: Path, name: str, cold: bool) -> None:
    ids = CASES.get(name, np.empty(0, np.int64))
    record = write_ids(tmp_path / "ids", ids)
    translator = IdTranslator(tmp_path / "ids", record)
    rng = np.random.default_rng(7)
    others = rng.integers(-(2**63), 2**63 - 1, 3000, endpoint=True)
    raw = np.concatenate([others, ids, ids[:1] - 1, ids[-1:] + 1, [-(2**63), 2**63 - 1]])
    rng.shuffle(raw)
    if cold:
        drop_cache(tmp_path / "ids")
    expected = {value: place for place, value in enumerate(ids.tolist())}
    assert translator.find(raw).tolist() == [expected.get(value, -1) for value in raw.tolist()]
    del translator


LARGE = """
import json, resource, sys
import numpy as np
from pathlib import Path
from overspill.build.ids.numbers import IdTranslator
from overspill.linux.processes import process_memory
from overspill.storage.arrays import read_array_info

def held():
    text = Path("/proc/self/io").read_text().split()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    return process_memory().anon_bytes, faults, int(text[text.index("read_bytes:") + 1])

path = Path(sys.argv[1])
warm = read_array_info(path)  # imports, and the page of the header
before = held()
translator = IdTranslator(path, warm)
opened = held()
ranks = np.random.default_rng(1).integers(0, warm.shape[0], 40_000)
translator.translate(ranks[:10] * 1000)  # loads the kernel
start = held()
for part in np.split(ranks, 2):
    assert np.array_equal(translator.translate(part * 1000), part)
print(json.dumps([opened[0] - before[0], held()[1] - start[1], held()[2] - start[2]]))
"""


@pytest.mark.memory
@pytest.mark.requires("memory_cgroup", "mincore")
def test_ids_larger_than_the_page_cache(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    """160 MB of ids with half of that for cache: pages are asked for, once, and not faulted in."""
    count = 20_000_000
    with ArrayWriter(tmp_path / "ids", dtype="int64", shape=(count,)) as writer:
        for first in range(0, count, MIB):
            writer.append(np.arange(first, min(count, first + MIB)) * 1000)
    make_cold(tmp_path / "ids")
    result = run_python(LARGE, arguments=[tmp_path / "ids"], limit_bytes=150 * MIB).check()
    index_bytes, faults, read_bytes = json.loads(result.stdout)
    assert index_bytes <= 4 * MIB
    # Each chunk's 20,000 ids lie on at most as many pages; touched unasked, each is a fault.
    assert faults < 1000
    assert read_bytes <= 40_000 * 4096 * 1.2
    (tmp_path / "ids").unlink()
