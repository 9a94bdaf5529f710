from __future__ import annotations

import os
from pathlib import Path

import pytest

from capabilities import requires
from overspill.errors import UnavailableError
from overspill.linux.read_ahead import ReadAhead, read_ahead


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A /sys whose disk holds the device of `tmp_path` as a partition."""
    device = tmp_path.stat().st_dev
    partition = tmp_path / "sys" / "block" / "disk" / "disk1"
    partition.mkdir(parents=True)
    (tmp_path / "sys" / "dev" / "block").mkdir(parents=True)
    name = f"{os.major(device)}:{os.minor(device)}"
    (tmp_path / "sys" / "dev" / "block" / name).symlink_to(partition)
    return tmp_path / "sys"


def set_window(place: Path, text: str) -> Path:
    setting = place / "queue" / "read_ahead_kb"
    setting.parent.mkdir(exist_ok=True)
    setting.write_text(text)
    return setting


def test_of_a_partition_it_is_that_of_its_disk(fake: Path, tmp_path: Path) -> None:
    setting = set_window(fake / "block" / "disk", "128\n")
    found = read_ahead(tmp_path, sys=fake)
    assert found == ReadAhead(128 << 10, str(setting))
    setting.write_text("0\n")
    assert read_ahead(tmp_path / "not" / "there" / "yet", sys=fake) == ReadAhead(0, str(setting))


def test_of_a_whole_disk_it_is_its_own(fake: Path, tmp_path: Path) -> None:
    set_window(fake / "block" / "disk", "128\n")
    own = set_window(fake / "block" / "disk" / "disk1", "4096\n")
    assert read_ahead(tmp_path, sys=fake) == ReadAhead(4 << 20, str(own))


@requires("private_mount")
def test_of_an_overlay_it_is_that_of_the_disk_below(fake: Path, tmp_path: Path) -> None:
    setting = set_window(fake / "block" / "disk", "256\n")
    lower, upper, work, merged = (tmp_path / name for name in ("lower", "upper", "work", "merged"))
    for place in (lower, upper, work, merged):
        place.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    if os.system(f"mount -t overlay -o {options} overlay {merged}") != 0:
        pytest.skip("no overlay file system here")
    try:
        assert merged.stat().st_dev != tmp_path.stat().st_dev
        assert read_ahead(merged / "x", sys=fake) == ReadAhead(256 << 10, str(setting))
    finally:
        assert os.system(f"umount {merged}") == 0


def test_of_a_file_system_that_cannot_be_asked_it_is_none(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_window(fake / "block" / "disk", "256\n")

    def refused(path: Path, *, proc: Path) -> Path:
        raise UnavailableError(f"{path} cannot be asked")

    monkeypatch.setattr("overspill.linux.read_ahead.backing_directory", refused)
    assert read_ahead(tmp_path, sys=fake) is None


@pytest.mark.parametrize("text", [None, "", "much\n"])
def test_what_is_not_told_is_none(fake: Path, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        set_window(fake / "block" / "disk", text)
    assert read_ahead(tmp_path, sys=fake) is None
    assert read_ahead(tmp_path, sys=tmp_path / "no sys") is None


def test_the_real_one_is_what_the_kernel_shows(tmp_path: Path) -> None:
    found = read_ahead(tmp_path)
    assert found is None or found.nbytes == int(Path(found.setting).read_text()) << 10
