"""Mapping files: what is checked, what is kept, when it goes, and what a fork sees."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from capabilities import requires
from overspill.errors import MappingError, StaleFileError
from overspill.linux import mapping as module
from overspill.linux.identity import FileIdentity, host_identity, identify_file
from overspill.linux.mapping import map_file, require_mappable
from overspill.linux.processes import has_mapping

from .injection import Injected

CONTENT = bytes(range(256)) * 40  # two and a half pages


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "data.bin"
    made.write_bytes(CONTENT)
    return made


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_a_mapping_shows_the_file(path: Path) -> None:
    mapping = map_file(path, nbytes=len(CONTENT))
    view = np.asarray(mapping)
    assert (view.dtype, view.shape, view.flags.writeable) == (np.uint8, (len(CONTENT),), True)
    assert view.tobytes() == CONTENT
    assert (mapping.path, mapping.shared) == (str(path), False)
    assert mapping.identity == identify_file(path)
    assert repr(mapping) == f"Mapping({str(path)!r}, nbytes=10240, private)"


def test_what_can_be_mapped_is_told_without_mapping_it_for_good() -> None:
    require_mappable(1 << 40)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    assert pages * os.sysconf("SC_PAGE_SIZE") < 1 << 40
    with pytest.raises(MappingError, match=r"vm\.max_map_count") as caught:
        require_mappable(1 << 60)  # more than there are addresses
    assert (caught.value.errno, caught.value.needed_bytes) == (errno.ENOMEM, 1 << 60)


def test_private_writes_stay_and_shared_writes_reach_the_file(path: Path) -> None:
    private = np.asarray(map_file(path, nbytes=len(CONTENT)))
    private[0] = 99
    assert path.read_bytes() == CONTENT
    shared = np.asarray(map_file(path, nbytes=len(CONTENT), shared=True))
    shared[0] = 77
    assert path.read_bytes()[0] == 77
    assert private[0] == 99


def test_the_last_view_unmaps_and_no_descriptor_is_kept(path: Path) -> None:
    before = open_descriptors()
    mapping = map_file(path, nbytes=len(CONTENT))
    assert open_descriptors() == before
    view = np.asarray(mapping)[100:200].reshape(10, 10)
    tensor = torch.from_numpy(view)
    del mapping, view
    gc.collect()
    assert is_mapped(path)
    assert int(tensor[0, 0]) == 100
    del tensor
    gc.collect()
    assert not is_mapped(path)


def test_a_thousand_mappings_cost_no_descriptor(path: Path) -> None:
    before = open_descriptors()
    kept = [map_file(path, nbytes=len(CONTENT)) for _ in range(1000)]
    assert open_descriptors() == before
    assert len({mapping.address for mapping in kept}) == 1000
    kept.clear()
    assert not is_mapped(path)


def test_a_mapping_outlives_its_name_and_is_found_by_identity(path: Path) -> None:
    mapping = map_file(path, nbytes=len(CONTENT))
    identity = mapping.identity
    path.unlink()
    assert np.asarray(mapping)[5] == 5
    assert has_mapping(identity.device, identity.inode)
    del mapping
    assert not has_mapping(identity.device, identity.inode)


def test_an_empty_file_maps_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "empty"
    path.touch()
    injected = Injected(monkeypatch, "mmap", errno.EINVAL)
    mapping = map_file(path, nbytes=0)
    assert (mapping.address, mapping.nbytes, injected.calls) == (0, 0, [])
    assert np.asarray(mapping).shape == (0,)


@pytest.mark.parametrize("shared", [False, True])
def test_a_missing_file_is_never_created(tmp_path: Path, shared: bool) -> None:
    with pytest.raises(StaleFileError, match="does not exist") as caught:
        map_file(tmp_path / "missing", nbytes=4096, shared=shared)
    assert caught.value.errno == errno.ENOENT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nbytes", [0, len(CONTENT) - 1, len(CONTENT) + 1, 1 << 40])
def test_another_size_is_refused_and_the_file_kept(path: Path, nbytes: int) -> None:
    with pytest.raises(StaleFileError) as caught:
        map_file(path, nbytes=nbytes, shared=True)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (nbytes, len(CONTENT))
    assert path.read_bytes() == CONTENT


def test_a_replaced_file_is_refused_by_identity(path: Path, tmp_path: Path) -> None:
    identity = identify_file(path)
    assert map_file(path, nbytes=len(CONTENT), identity=identity).nbytes == len(CONTENT)
    (tmp_path / "new").write_bytes(CONTENT)
    (tmp_path / "new").replace(path)
    with pytest.raises(StaleFileError, match="another file stands"):
        map_file(path, nbytes=len(CONTENT), identity=identity)


def test_a_reused_inode_is_another_file(path: Path) -> None:
    """Ext4 gives a freed inode to the next file at once; the birth time tells."""
    identity = identify_file(path)
    if identity.birth_time_ns is None:
        pytest.skip("no birth time on this file system")
    for _ in range(20):
        path.unlink()
        path.write_bytes(CONTENT)
        now = identify_file(path)
        with pytest.raises(StaleFileError):
            map_file(path, nbytes=len(CONTENT), identity=identity)
        if now.inode == identity.inode:
            break
    else:
        pytest.skip("this file system does not reuse inodes at once")
    assert now.birth_time_ns != identity.birth_time_ns


def test_a_moved_file_keeps_its_identity(path: Path) -> None:
    identity = identify_file(path)
    moved = path.rename(path.with_name("moved"))
    assert map_file(moved, nbytes=len(CONTENT), identity=identity).identity == identity


@pytest.mark.parametrize("change", ["replace", "truncate", "remove"])
def test_a_change_between_check_and_mapping_is_seen(
    path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    real = module._map

    def changed(*arguments: object, **options: bool) -> int:
        address = real(*arguments, **options)  # type: ignore[arg-type]
        if change == "replace":
            path.with_name("new").write_bytes(CONTENT)
            path.with_name("new").replace(path)
        elif change == "truncate":
            os.truncate(path, 100)
        else:
            path.unlink()
        return address

    monkeypatch.setattr(module, "_map", changed)
    with pytest.raises(StaleFileError, match="while it was being mapped") as caught:
        map_file(path, nbytes=len(CONTENT))
    assert not is_mapped(path)  # although the error, and its traceback, are still held
    assert caught.value.path == str(path)


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    with pytest.raises(MappingError, match="regular file"):
        map_file(path, nbytes=4096)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOMEM, ["vm.max_map_count", "overcommit"]),
        (errno.ENODEV, ["supports mapping"]),
        (errno.EIO, ["file system"]),
    ],
)
def test_a_refused_mapping_names_the_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, told: list[str]
) -> None:
    Injected(monkeypatch, "mmap", number)
    with pytest.raises(MappingError) as caught:
        map_file(path, nbytes=len(CONTENT))
    assert caught.value.errno == number
    assert all(word in str(caught.value) for word in told)


def test_the_limit_on_open_files_is_named(run_python: Callable[..., object]) -> None:
    result = run_python(
        """
        import os, resource
        from overspill.errors import MappingError
        from overspill.linux.mapping import map_file
        size = os.stat(__file__).st_size
        kept = [map_file(__file__, nbytes=size) for _ in range(2000)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        try:
            map_file(__file__, nbytes=size)
        except MappingError as error:
            print(error.remedy)
        """,
        fresh=True,
    )
    assert "ulimit -n" in result.check().stdout  # type: ignore[attr-defined]


@requires("unprivileged_user")
def test_permissions_decide_what_can_be_mapped(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    pid = os.fork()
    if pid == 0:  # the temporary directory is root's alone: the child gets in by descriptor
        code = 1
        try:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            code = _map_as_nobody(f"/proc/self/fd/{fd}")
        finally:
            os._exit(code)
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _map_as_nobody(path: str) -> int:
    if np.asarray(map_file(path, nbytes=len(CONTENT)))[3] != 3:
        return 2
    try:
        map_file(path, nbytes=len(CONTENT), shared=True)
    except MappingError as error:
        return 0 if error.errno == errno.EACCES and "writable" in str(error.remedy) else 3
    return 4


def test_a_mapping_does_not_pickle(path: Path) -> None:
    with pytest.raises(MappingError, match="path and the identity"):
        pickle.dumps(map_file(path, nbytes=len(CONTENT)))


def test_a_forked_child_drops_only_its_own(path: Path) -> None:
    mapping = map_file(path, nbytes=len(CONTENT))
    view = np.asarray(mapping)
    pid = os.fork()
    if pid == 0:
        good = view[7] == 7
        view[7] = 200
        del view, mapping
        gc.collect()
        os._exit(0 if good and not is_mapped(path) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert view[7] == 7


def test_threads_map_and_unmap_at_once(path: Path) -> None:
    wrong: list[int] = []

    def work() -> None:
        for _ in range(200):
            view = np.asarray(map_file(path, nbytes=len(CONTENT)))
            if view[9] != 9:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not is_mapped(path)


def test_a_mapping_that_lives_at_exit_does_no_harm(run_python: Callable[..., object]) -> None:
    result = run_python(
        """
        import atexit, os
        import numpy as np
        from overspill.linux.mapping import map_file
        view = np.asarray(map_file(__file__, nbytes=os.stat(__file__).st_size))
        atexit.register(lambda: print(view.sum() > 0))
        from overspill.linux.mapping import Mapping
        class Late:
            def __del__(self): print(view.sum() > 0)
        late = Late()
        """,
        fresh=True,
    )
    assert result.check().stdout.split() == ["True", "True"]  # type: ignore[attr-defined]


def test_an_identity_is_the_same_by_path_link_and_descriptor(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    held = path.stat()
    identity = identify_file(path)
    with path.open("rb") as opened:
        assert identify_file(link) == identify_file(str(path)) == identify_file(opened.fileno())
    assert identity == identify_file(path)
    assert (identity.device, identity.inode, identity.nbytes) == (
        held.st_dev,
        held.st_ino,
        held.st_size,
    )


def test_an_identity_without_statx_has_no_birth_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Injected(monkeypatch, "statx", errno.EPERM)  # what Docker's older filters answer
    held = path.stat()
    assert identify_file(path) == FileIdentity(held.st_dev, held.st_ino, None, len(CONTENT))
    with pytest.raises(StaleFileError):
        identify_file(path.with_name("missing"))


def test_a_missing_file_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(StaleFileError, match="No such file") as caught:
        identify_file(tmp_path / "missing")
    assert caught.value.errno == errno.ENOENT


def test_the_host_is_named_with_its_boot() -> None:
    name, _, boot = host_identity().partition("/")
    assert name == os.uname().nodename
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
