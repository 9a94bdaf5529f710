"""What was sent by path: an error at the receiver names both machines, where there are two."""

from __future__ import annotations

import errno

import pytest

from overspill.errors import FormatError, InputError, OverspillError, StaleFileError
from overspill.linux.identity import host_identity
from overspill.storage.sent_paths import require_sent, sent_from

THERE = "elsewhere/00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize("error", [StaleFileError, FormatError])
def test_another_machine_names_both(error: type[OverspillError]) -> None:
    told = f"it is gone; the pack was sent from {THERE}, and this is {host_identity()}"
    with pytest.raises(StaleFileError) as caught, sent_from(THERE, "/data", "pack"):
        raise error("it is gone", path="/data/file", errno=errno.ENOENT, remedy="elsewhere")
    assert (caught.value.message, caught.value.path) == (told, "/data")
    assert caught.value.errno == errno.ENOENT
    assert "a file system that both share" in (caught.value.remedy or "")


def test_the_senders_own_machine_tells_nothing_more() -> None:
    here = host_identity()
    with pytest.raises(FormatError, match=r"^it is gone$"), sent_from(here, "/d", "pack"):
        raise FormatError("it is gone")


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(InputError, match=r"^no$"), sent_from(THERE, "/data", "pack"):
        raise InputError("no")


def test_a_remedy_of_its_own() -> None:
    with pytest.raises(StaleFileError) as caught, sent_from(THERE, "/d", "handle", remedy="do"):
        raise StaleFileError("gone")
    assert caught.value.remedy == "do"


def test_another_one_is_refused_with_both_identifiers() -> None:
    require_sent("dataset", "/data", found="a", sent="a")
    with pytest.raises(StaleFileError, match="another dataset stands at /data: b, where a was"):
        require_sent("dataset", "/data", found="b", sent="a")
