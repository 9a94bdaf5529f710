"""Which machine and boot: containers of one kernel are one machine, an earlier boot is another."""

from __future__ import annotations

import pytest

from overspill.linux import identity
from overspill.linux.identity import host_identity, is_this_boot


def test_the_boot_decides_whatever_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name, _, boot = host_identity().rpartition("/")
    assert is_this_boot(host_identity()) and is_this_boot(f"container/{boot}")
    assert not is_this_boot(f"{name}/00000000-0000-0000-0000-000000000000")
    assert not is_this_boot("") and not is_this_boot(name + "/")
    # Without boot ids, names are all there is.
    monkeypatch.setattr(identity, "host_identity", lambda: "here/unknown")
    assert is_this_boot("here/unknown") and not is_this_boot("there/unknown")
