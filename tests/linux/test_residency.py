"""Who is told which pages are present: as the kernel decides it, in every user namespace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from overspill.errors import StaleFileError
from overspill.linux import residency
from overspill.linux.residency import shows_residency

FIRST, ROOTLESS = "0 0 4294967295", "0 1000 1\n1 100000 65536"
FOWNER, NOTHING = "Name:\tx\nCapEff:\t0000000000000008\n", "CapEff:\t0000000000000000\n"
NOBODY = 65534


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks as another process would, which may not write the file."""
    path = tmp_path / "file"
    path.write_bytes(b"x")

    def ask(*, user: int, owner: int, ids: str, capabilities: str = NOTHING) -> bool:
        held = {"_UID_MAP": ids, "_STATUS": capabilities, "_OVERFLOW_UID": f"{NOBODY}\n"}
        for name, text in held.items():
            (tmp_path / name).write_text(text)
            monkeypatch.setattr(residency, name, tmp_path / name)
        os.chown(path, owner, 0)
        monkeypatch.setattr(os, "geteuid", lambda: user)
        monkeypatch.setattr(os, "access", lambda *_, **__: False)
        return shows_residency(path)

    return ask


def test_those_who_may_write_are_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert shows_residency(tmp_path / "file")
    with pytest.raises(StaleFileError, match="cannot find"):
        shows_residency(tmp_path / "none")


@pytest.mark.requires("root")  # gives files away
def test_others_are_told_as_owners_or_by_capability(shown: Any) -> None:
    assert shown(user=7, owner=7, ids=FIRST)
    assert not shown(user=7, owner=8, ids=FIRST)
    assert shown(user=7, owner=8, ids=FIRST, capabilities=FOWNER)
    # Root without the capability is one user among others.
    assert not shown(user=0, owner=8, ids=FIRST)
    assert shown(user=0, owner=NOBODY, ids=FIRST, capabilities=FOWNER)


@pytest.mark.requires("root")  # gives files away
def test_in_a_container_root_is_not_told_of_files_of_nobody_there(shown: Any) -> None:
    assert shown(user=0, owner=5, ids=ROOTLESS, capabilities=FOWNER)
    assert not shown(user=0, owner=NOBODY, ids=ROOTLESS, capabilities=FOWNER)
    assert not shown(user=NOBODY, owner=NOBODY, ids=ROOTLESS)
