from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import overspill as ov
from overspill.linux.identity import FileIdentity
from overspill.linux.mapping import map_file
from overspill.tensors.mapping import wrap_mapping
from overspill.tensors.registry import MAPPED, MappedFile, Registry


class Owner:
    pass


def record(
    address: int,
    nbytes: int,
    owner: Callable[[], object],
    inode: int = 1,
    *,
    ours: bool = True,
) -> MappedFile:
    return MappedFile(
        path=f"/file{inode}",
        identity=FileIdentity(1, inode, None, nbytes),
        address=address,
        nbytes=nbytes,
        shared=True,
        ours=ours,
        owner=owner,  # type: ignore[arg-type]
    )


def test_found_by_any_address_inside_and_none_beside() -> None:
    registry, owner = Registry(), Owner()
    one = record(1000, 100, lambda: owner)
    registry.enter(one)
    assert registry.at(1000) is one
    assert registry.at(1099) is one
    assert registry.at(1100) is None
    assert registry.at(999) is None


def test_a_dead_entry_is_not_found_and_gives_way_to_what_reuses_its_addresses() -> None:
    registry, owner = Registry(), Owner()
    registry.enter(record(1000, 100, lambda: None, inode=1))
    registry.enter(record(2000, 100, lambda: None, inode=2))
    assert registry.at(1050) is None
    wide = record(500, 3000, lambda: owner, inode=3)
    registry.enter(wide)
    assert registry.at(1050) is wide
    assert registry.at(2050) is wide
    assert registry.of(FileIdentity(1, 1, None, 100), shared=True) is None


def test_dead_entries_are_swept_so_that_the_table_does_not_grow() -> None:
    registry = Registry()
    for number in range(5000):
        registry.enter(record(number * 1000, 100, lambda: None, inode=number))
    assert len(registry._addresses) <= 129
    assert len(registry._by_identity) == len(registry._addresses)


def test_live_entries_survive_a_sweep() -> None:
    registry, owner = Registry(), Owner()
    for number in range(300):
        registry.enter(record(number * 1000, 100, lambda: owner, inode=number))
    assert len(registry.records()) == 300
    assert registry.of(FileIdentity(1, 7, None, 100), shared=True) is owner


def test_memory_that_reuses_the_addresses_of_a_mapping_is_not_disk_backed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(8192))
    tensor = wrap_mapping(map_file(path, nbytes=8192), dtype=torch.uint8, shape=(8192,))
    address = tensor.data_ptr()
    assert MAPPED.at(address) is not None
    del tensor
    gc.collect()
    assert MAPPED.at(address) is None


def test_a_storage_that_torch_moved_into_shared_memory_is_no_longer_disk_backed(
    spill_dir: Path,
) -> None:
    tensor = ov.spill_tensor_to_disk(torch.arange(1000), required=True)
    assert ov.is_disk_backed(tensor)
    strategy = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        tensor.untyped_storage()._share_filename_cpu_()  # beneath share_memory_(), which does not
    finally:
        torch.multiprocessing.set_sharing_strategy(strategy)
    assert not ov.is_disk_backed(tensor)
    assert torch.equal(tensor, torch.arange(1000))


@pytest.mark.parametrize("own_first", [True, False])
def test_a_users_own_mapping_is_found_by_address_and_never_handed_out(own_first: bool) -> None:
    registry, mine, theirs = Registry(), Owner(), Owner()
    entries = [record(1000, 100, lambda: mine), record(2000, 100, lambda: theirs, ours=False)]
    for entry in entries if own_first else reversed(entries):
        registry.enter(entry)
    assert registry.at(2050) is entries[1]
    assert registry.of(FileIdentity(1, 1, None, 100), shared=True) is mine


def test_a_destructor_that_the_collector_runs_inside_may_look_up() -> None:
    registry, seen = Registry(), []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            seen.append(registry.at(1050))

    def collected() -> None:
        Cycle()
        gc.collect()

    def fill() -> None:
        for number in range(200):  # the table is swept once, which asks each owner
            registry.enter(record(number * 1000, 100, collected if number == 1 else lambda: None))

    worker = threading.Thread(target=fill, daemon=True)
    worker.start()
    worker.join(60)
    assert not worker.is_alive() and None in seen


@pytest.mark.parametrize("address", [0, -1])
def test_an_empty_registry_finds_nothing(address: int) -> None:
    assert Registry().at(address) is None
