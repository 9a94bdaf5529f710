from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from overspill import imports
from overspill.imports import when_imported


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that can be imported and has not been."""
    name = "overspill_test_late"
    (tmp_path / f"{name}.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)
    imports._WATCH.awaited.pop(name, None)


def test_a_loaded_module_is_acted_upon_at_once() -> None:
    seen: list[ModuleType] = []
    when_imported("json", seen.append)
    assert seen == [sys.modules["json"]]


def test_a_later_one_right_after_its_own_code_and_once(late: str) -> None:
    seen: list[tuple[str, int]] = []
    for order in ("first", "second"):
        when_imported(late, lambda module, order=order: seen.append((order, module.value)))
    assert late not in sys.modules and seen == []
    module = __import__(late)
    assert seen == [("first", 7), ("second", 7)]
    # Nothing of the wait is left on what others look at.
    assert "exec_module" not in vars(module.__loader__)
    assert module.__spec__.loader is module.__loader__
    del sys.modules[late]
    __import__(late)
    assert len(seen) == 2


def test_looking_for_a_module_is_not_importing_it(late: str) -> None:
    import importlib.util

    seen: list[ModuleType] = []
    when_imported(late, seen.append)
    assert importlib.util.find_spec(late) is not None
    assert seen == []
    __import__(late)
    assert len(seen) == 1


def test_a_module_that_fails_to_import_is_awaited_again(late: str, tmp_path: Path) -> None:
    seen: list[ModuleType] = []
    when_imported(late, seen.append)
    path = tmp_path / f"{late}.py"
    path.write_text("raise RuntimeError('broken')\n")
    with pytest.raises(RuntimeError, match="broken"):
        __import__(late)
    assert seen == []
    path.write_text("value = 12345678\n")
    __import__(late)
    assert len(seen) == 1


def test_a_module_that_does_not_exist_is_still_missing() -> None:
    name = "overspill_test_nowhere"
    when_imported(name, lambda _module: None)
    try:
        with pytest.raises(ModuleNotFoundError):
            __import__(name)
    finally:
        imports._WATCH.awaited.pop(name)
