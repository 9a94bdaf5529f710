"""Every tensor that is handed out can be written, or handing it out raises: never SIGSEGV."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch

import overspill as ov
from capabilities import requires
from overspill.errors import MappingError
from overspill.linux.mapping import map_file
from overspill.tensors.mapping import wrap_mapping


def private(path: Path) -> torch.Tensor:
    path.write_bytes(bytes(4096))
    mapping = map_file(path, nbytes=4096)
    return wrap_mapping(mapping, dtype=torch.int64, shape=(512,))


MAKERS: dict[str, Callable[[Path], torch.Tensor]] = {
    "spilled": lambda _: ov.spill_tensor_to_disk(torch.zeros(512, dtype=torch.int64)),
    "allocated": lambda _: ov.allocate_disk_backed(512, torch.int64),
    "preshared": lambda _: ov.allocate_preshared(512, torch.int64),
    "loaded": lambda _: ov.load_spilled_tensor(
        ov.allocate_disk_backed(512, torch.int64).untyped_storage().filename, torch.int64, 512
    ),
    "private": lambda place: private(place / "array"),
}
TRAVELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda tensor: tensor,
    "a view": lambda tensor: tensor[::2],
    "a handle": lambda tensor: pickle.loads(pickle.dumps(ov.handle(tensor))).open(),
    "a send": lambda tensor: ForkingPickler.loads(ForkingPickler.dumps(tensor)),
    "numpy": lambda tensor: torch.from_numpy(tensor.numpy()),
}


@pytest.mark.parametrize("travel", TRAVELS)
@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_handed_out_can_be_written(
    maker: str, travel: str, spill_dir: Path, tmp_path: Path
) -> None:
    made = MAKERS[maker](tmp_path)
    got = TRAVELS[travel](made)
    got.fill_(3)
    assert int(got[0]) == 3 and got.numpy().flags.writeable
    ov.release_page_cache(made)
    assert int(got[-1]) == 3


@pytest.fixture
def read_only(loop_disk: Callable[[int], Path]) -> Iterator[Path]:
    place = loop_disk(8 << 20)
    np.arange(512).tofile(place / "array")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    yield place / "array"


@requires("loop_device")
def test_on_a_read_only_mount_it_is_private_or_an_error(read_only: Path) -> None:
    with pytest.raises(MappingError) as caught:
        ov.load_spilled_tensor(read_only, torch.int64, 512)
    assert isinstance(caught.value, OSError)
    del caught  # its traceback would keep this frame, and the mapping: a busy mount
    tensor = wrap_mapping(map_file(read_only, nbytes=4096), dtype=torch.int64, shape=(512,))
    tensor[0] = 7
    assert int(tensor.sum()) == 7 + sum(range(512))
    assert np.fromfile(read_only, dtype=np.int64)[0] == 0
