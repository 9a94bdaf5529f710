from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from overspill.errors import InputError, MappingError
from overspill.linux.identity import identify_file
from overspill.linux.mapping import map_file
from overspill.linux.paths import missing_block_bytes, require_path, require_regular_file
from overspill.linux.processes import maps_path

NO_PATHS = ["\0", "cut\0short", b"cut\0short", "/tmp/\ud800", 3, None, ["a"]]


class TestEntering:
    @pytest.mark.parametrize("given", ["a/../b", b"a/../b", Path("a/../b")])
    def test_text_bytes_and_paths(self, given: object) -> None:
        assert require_path(given) == "a/../b"

    def test_bytes_that_are_no_text_keep_their_file(self, tmp_path: Path) -> None:
        name = os.fsencode(tmp_path) + b"/\xff\xfe"
        Path(os.fsdecode(name)).write_bytes(b"abc")
        assert identify_file(require_path(name)).nbytes == 3

    @pytest.mark.parametrize("given", NO_PATHS, ids=repr)
    def test_what_no_file_can_be_called(self, given: object) -> None:
        with pytest.raises(InputError, match="path") as caught:
            require_path(given)
        assert caught.value.remedy

    @pytest.mark.parametrize("ask", [identify_file, maps_path, lambda p: map_file(p, nbytes=3)])
    def test_a_nul_does_not_lead_to_another_file(
        self, ask: Callable[[str], object], tmp_path: Path
    ) -> None:
        (tmp_path / "cut").write_bytes(b"abc")
        with pytest.raises(InputError, match="NUL"):
            ask(f"{tmp_path}/cut\0short")


class TestRegularFiles:
    def test_directories_devices_and_pipes(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for place, number in (
            (tmp_path, errno.EISDIR),
            (tmp_path / "pipe", errno.EINVAL),
            (Path("/dev/null"), errno.EINVAL),
        ):
            with pytest.raises(MappingError, match="not a regular file") as caught:
                require_regular_file(str(place))
            assert (caught.value.path, caught.value.errno) == (str(place), number)

    def test_files_by_links_and_what_is_missing(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        (tmp_path / "link").symlink_to("file")
        for name in ("file", "link", "missing"):
            require_regular_file(str(tmp_path / name))

    def test_a_device_is_not_even_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def opened(*_arguments: object) -> int:
            raise AssertionError("opened")

        monkeypatch.setattr(os, "open", opened)
        with pytest.raises(MappingError, match="not a regular file"):
            map_file("/dev/null", nbytes=0, shared=True)


class TestMissingBlocks:
    def test_written_reserved_and_empty_files_miss_none(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        for content in (b"", b"x", bytes(100_000)):
            path.write_bytes(content)
            assert missing_block_bytes(str(path)) == 0
        with path.open("r+b") as file:
            os.ftruncate(file.fileno(), 1 << 20)
            os.posix_fallocate(file.fileno(), 0, 1 << 20)
        assert missing_block_bytes(str(path)) == 0

    def test_holes_are_missing_wherever_they_lie(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(8192))
        os.truncate(path, 100_000)
        assert 80_000 < missing_block_bytes(str(path)) <= 100_000 - 8192
        with path.open("r+b") as file:
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), bytes(8192), 92_000)
        assert missing_block_bytes(str(path)) > 80_000

    def test_a_file_whose_blocks_were_compressed_away_misses_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on ZFS and btrfs: few blocks, and no hole."""
        path = tmp_path / "file"
        path.write_bytes(bytes(100_000))
        held = list(path.stat())
        fields = {"st_blocks": 1}
        monkeypatch.setattr(os, "fstat", lambda _fd: os.stat_result(held, fields))
        assert missing_block_bytes(str(path)) == 0

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(MappingError, match="cannot open") as caught:
            missing_block_bytes(str(tmp_path / "missing"))
        assert caught.value.errno == errno.ENOENT
