"""Which machine and boot: containers of one kernel are one machine, an earlier boot is another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from overspill.linux import identity
from overspill.linux.identity import FileIdentity, host_identity, is_this_boot

SENT = FileIdentity(device=7, inode=12, birth_time_ns=1_700_000_000_000_000_001, nbytes=4096)


def test_the_boot_decides_whatever_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, boot = host_identity().rpartition("/")
    assert is_this_boot(host_identity()) and is_this_boot(f"container/{boot}")
    assert not is_this_boot(f"{name}/00000000-0000-0000-0000-000000000000")
    assert not is_this_boot("") and not is_this_boot(name + "/")
    # Without boot ids, names are all there is.
    monkeypatch.setattr(identity, "host_identity", lambda: "here/unknown")
    assert is_this_boot("here/unknown") and not is_this_boot("there/unknown")


def test_elsewhere_the_number_of_the_device_means_nothing() -> None:
    assert SENT.matches_elsewhere(SENT) and replace(SENT, device=8).matches_elsewhere(SENT)


@pytest.mark.parametrize(
    "differing", [{"inode": 13}, {"nbytes": 4097}, {"birth_time_ns": SENT.birth_time_ns - 1}]
)
def test_elsewhere_another_file_is_another(differing: dict[str, Any]) -> None:
    assert not replace(SENT, **differing).matches_elsewhere(SENT)


def test_elsewhere_files_without_a_birth_time_are_never_the_same() -> None:
    untold = replace(SENT, birth_time_ns=None)
    assert not untold.matches_elsewhere(untold)
    assert str(untold) == "inode 12, birth time unknown, 4096 bytes"
    assert str(SENT) == "inode 12, birth time 1700000000000000001 ns, 4096 bytes"
