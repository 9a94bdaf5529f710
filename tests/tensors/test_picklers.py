"""cloudpickle and loky: by path through their own tables, and nobody else's."""

from __future__ import annotations

import copy
import copyreg
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import joblib.externals.loky.backend.reduction as joblib_reduction
import pytest
import torch

import overspill as ov
from overspill.errors import StaleFileError, UnsupportedTensorError
from overspill.settings import child_environment


def loky_dumps(held: Any) -> bytes:
    return bytes(joblib_reduction.dumps(held))


PICKLERS = {"cloudpickle": cloudpickle.dumps, "loky": loky_dumps}
ON = {"OVERSPILL_MIN_BYTES": "1", "OVERSPILL_RUN": ""}
Dumps = Callable[[Any], bytes]


class Marked(torch.Tensor):
    pass


@pytest.fixture(params=PICKLERS)
def dumps(request: pytest.FixtureRequest) -> Dumps:
    return PICKLERS[request.param]


@pytest.fixture
def spilled(spill_dir: Path) -> torch.Tensor:
    return ov.spill_tensor_to_disk(torch.randn(512, 64), required=True)


def views(spilled: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "whole": spilled,
        "offset": spilled[3:],
        "transposed": spilled.t(),
        "element": spilled[2, 5],
        "empty": spilled[:0],
        "leaf": spilled.detach().requires_grad_(),
        "parameter": torch.nn.Parameter(spilled),
        "frozen": torch.nn.Parameter(spilled, requires_grad=False),
        "buffer": torch.nn.Buffer(spilled),
        "subclass": spilled.as_subclass(Marked),
        "complex": torch.view_as_complex(spilled.view(512, 32, 2)).conj(),
    }


@pytest.mark.parametrize("name", views(torch.empty(512, 64)))
def test_what_is_over_a_file_goes_by_path(name: str, dumps: Dumps, spilled: torch.Tensor) -> None:
    sent = views(spilled)[name]
    data = dumps(sent)
    # The subclass of a test module carries its name and torch's own frame around the storage.
    assert len(data) < 1024
    back = pickle.loads(data)
    assert type(back) is type(sent)
    assert back.untyped_storage().data_ptr() == spilled.untyped_storage().data_ptr()
    layouts = [(t.shape, t.stride(), t.storage_offset(), t.requires_grad) for t in (back, sent)]
    assert layouts[0] == layouts[1]
    assert back.is_conj() == sent.is_conj()
    assert torch.equal(back, sent)


def test_storages_and_sparse_values_go_by_path(dumps: Dumps, spilled: torch.Tensor) -> None:
    storage = spilled.untyped_storage()
    for held in (storage, spilled._typed_storage()):
        data = dumps(held)
        assert len(data) < 1024
        assert pickle.loads(data).data_ptr() == storage.data_ptr()
    indices = torch.zeros(1, 512, dtype=torch.int64)
    sparse = torch.sparse_coo_tensor(indices, spilled, (1, 64), check_invariants=True)
    assert len(dumps(sparse)) < indices.nbytes + 2048 < spilled.nbytes
    assert torch.equal(pickle.loads(dumps(sparse)).to_dense(), sparse.to_dense())
    torch._utils._validate_loaded_sparse_tensors()  # else torch itself keeps it for ever


def test_memory_goes_as_it_did(dumps: Dumps) -> None:
    held = torch.arange(1000.0)
    assert len(dumps(held)) > 4000
    for sent in (held, held[3:], torch.nn.Parameter(held), held.as_subclass(Marked)):
        back = pickle.loads(dumps(sent))
        assert type(back) is type(sent) and torch.equal(back, sent)
        assert back.data_ptr() != sent.data_ptr()
    assert pickle.loads(dumps(torch.empty(0, 3))).shape == (0, 3)


def test_closures_carry_the_path(spilled: torch.Tensor) -> None:
    data = cloudpickle.dumps(lambda row: spilled[row].sum())
    assert len(data) < 4096
    assert pickle.loads(data)(3) == spilled[3].sum()


def test_refusals_are_raised_at_the_send(dumps: Dumps, spilled: torch.Tensor) -> None:
    with pytest.raises(UnsupportedTensorError, match="no leaf"):
        dumps(spilled.requires_grad_().view(-1))
    path = Path(spilled.untyped_storage().filename)
    data = dumps(spilled.detach())
    path.unlink()
    with pytest.raises(StaleFileError):
        pickle.loads(data)


def test_a_users_own_mapping_goes_by_path_while_spilling_is_on(
    dumps: Dumps, tmp_path: Path, spill_dir: Path
) -> None:
    path = tmp_path / "own"
    path.write_bytes(bytes(8000))
    tensor = torch.from_file(str(path), shared=True, size=2000)
    assert len(dumps(tensor)) < 1024
    with ov.settings(spill_dir=None):
        assert len(dumps(tensor)) > 8000


def test_copies_are_copies_and_plain_pickles_are_bytes(spilled: torch.Tensor) -> None:
    for held in (spilled, spilled[2:], torch.nn.Parameter(spilled), [spilled, spilled.t()]):
        deep = copy.deepcopy(held)
        first, source = (deep[0], held[0]) if isinstance(held, list) else (deep, held)
        assert not ov.is_disk_backed(first)
        with torch.no_grad():
            first.add_(1)
        assert not torch.equal(first, source)
        assert torch.equal(copy.copy(source), source)
        assert copy.copy(source).data_ptr() == source.data_ptr()
        assert len(pickle.dumps(held)) > spilled.nbytes
    one, other = copy.deepcopy([spilled, spilled.t()])
    assert one.data_ptr() == other.data_ptr()  # torch's own memo keeps views together
    assert copy.deepcopy(ov.handle(spilled)) == ov.handle(spilled)


def test_only_the_picklers_own_tables_were_entered() -> None:
    kinds = {torch.Tensor, torch.nn.Parameter, torch.UntypedStorage, torch.TypedStorage}
    assert not kinds & set(copyreg.dispatch_table)
    assert kinds <= set(cloudpickle.CloudPickler.dispatch_table)
    assert kinds <= set(joblib_reduction._dispatch_table)


def run_fresh(script: str, place: Path) -> str:
    env = child_environment(OVERSPILL_DIR=str(place), **ON)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "order",
    [
        "torch, overspill, cloudpickle",
        "cloudpickle, torch, overspill",
        "overspill, cloudpickle, torch",
    ],
    ids=["after", "before", "between"],
)
def test_in_whatever_order_the_packages_are_imported(order: str, tmp_path: Path) -> None:
    script = f"""
import {order}
tensor = overspill.spill_tensor_to_disk(torch.zeros(10000), required=True)
print(len(cloudpickle.dumps(tensor)))
"""
    assert int(run_fresh(script, tmp_path)) < 1024


LATE = {
    "cloudpickle": "from cloudpickle import dumps",
    "loky": "from joblib.externals.loky.backend.reduction import dumps",
    "loky with pickle": "import os; os.environ['LOKY_PICKLER'] = 'pickle'\n"
    "from joblib.externals.loky.backend.reduction import dumps",
    "ray": "from ray.cloudpickle import dumps",
}


def test_a_pickler_may_be_imported_late(tmp_path: Path) -> None:
    script = f"""
import json, os, sys
import overspill, torch
tensor = overspill.spill_tensor_to_disk(torch.zeros(10000), required=True)
for name, late in {LATE!r}.items():  # each in a process that has none of them yet
    if os.fork() == 0:
        assert not {{"cloudpickle", "ray", "joblib", "loky"}} & set(sys.modules), sys.modules.keys()
        exec(late)
        print(json.dumps([name, len(dumps(tensor))]), flush=True)
        os._exit(0)
    os.wait()
"""
    told = dict(json.loads(line) for line in run_fresh(script, tmp_path).splitlines())
    assert set(told) == set(LATE) and max(told.values()) < 1024, told


def test_parallel_jobs_read_the_same_file(run_python: Callable[..., Any], tmp_path: Path) -> None:
    script = """
    import joblib, torch
    import overspill as ov

    def look(tensor):
        return tensor.untyped_storage().filename, float(tensor.sum()), tensor * 2

    if __name__ == "__main__":
        spilled = ov.spill_tensor_to_disk(torch.arange(1000.0), required=True)
        jobs = [joblib.delayed(look)(spilled[n:]) for n in range(3)]
        for n, (name, total, double) in enumerate(joblib.Parallel(n_jobs=2)(jobs)):
            assert name == spilled.untyped_storage().filename
            assert total == float(spilled[n:].sum())
            assert torch.equal(double, spilled[n:] * 2)  # memory comes back as it did
    """
    run_python(script, env={"OVERSPILL_DIR": str(tmp_path / "spill"), **ON}).check()
