from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import zipfile
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
    seen: list[ModuleType] = []
    when_imported(late, seen.append)
    assert importlib.util.find_spec(late) is not None
    assert seen == []
    __import__(late)
    assert len(seen) == 1


class TestOneLoaderForManyModules:
    """As zipimporter is: one for a whole archive."""

    @pytest.fixture
    def zipped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        names = [f"overspill_test_zipped_{number}" for number in range(3)]
        path = tmp_path / "modules.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for number, name in enumerate(names):
                archive.writestr(f"{name}.py", f"value = {number}\n")
        monkeypatch.syspath_prepend(path)
        yield names
        for name in names:
            sys.modules.pop(name, None)
            imports._WATCH.awaited.pop(name, None)

    def test_looked_for_twice_it_is_imported_as_ever(self, zipped: list[str]) -> None:
        seen: list[ModuleType] = []
        when_imported(zipped[0], seen.append)
        for _ in range(2):
            assert importlib.util.find_spec(zipped[0]) is not None
        module = importlib.import_module(zipped[0])
        assert (module.value, seen) == (0, [module])
        assert "exec_module" not in vars(module.__loader__)

    def test_another_module_of_it_is_not_taken_for_it(self, zipped: list[str]) -> None:
        seen: list[ModuleType] = []
        when_imported(zipped[0], seen.append)
        assert importlib.util.find_spec(zipped[0]) is not None
        assert importlib.import_module(zipped[1]).value == 1
        assert seen == []
        module = importlib.import_module(zipped[0])
        assert seen == [module]

    def test_several_that_are_awaited_at_once(self, zipped: list[str]) -> None:
        seen: list[ModuleType] = []
        for name in zipped[:2]:
            when_imported(name, seen.append)
        specs = [importlib.util.find_spec(name) for name in zipped]
        modules = [importlib.util.module_from_spec(spec) for spec in specs if spec is not None]
        for module in modules:
            module.__loader__.exec_module(module)
        assert [module.value for module in modules] == [0, 1, 2]
        assert seen == modules[:2]
        assert "exec_module" not in vars(modules[0].__loader__)


def test_anothers_hook_on_the_loader_is_kept(late: str) -> None:
    spec = importlib.util.find_spec(late)
    assert spec is not None and spec.loader is not None
    loader, execute = spec.loader, spec.loader.exec_module
    seen: list[object] = []

    def hook(module: ModuleType) -> None:
        seen.append("hook")
        execute(module)

    loader.exec_module = hook  # type: ignore[method-assign]
    when_imported(late, seen.append)
    imports._WATCH._announce(loader, late)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert seen == ["hook", module]
    assert vars(loader)["exec_module"] is hook


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


class TestInTheMidstOfItsImport:
    @pytest.fixture
    def importing(
        self, late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[threading.Event]:
        """Another thread is within the module's code until the event is set."""
        started, go = threading.Event(), threading.Event()
        monkeypatch.setattr(imports, "test_events", (started, go), raising=False)
        (tmp_path / f"{late}.py").write_text(
            "from overspill import imports\n"
            "imports.test_events[0].set()\n"
            "assert imports.test_events[1].wait(60)\n"
            "value = 7\n"
        )
        thread = threading.Thread(target=__import__, args=(late,))
        thread.start()
        assert started.wait(60)
        yield go
        go.set()
        thread.join()

    def test_what_another_thread_imports_is_waited_for(
        self, late: str, importing: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        look = imports._is_being_imported

        def looked(name: str) -> bool:
            found = look(name)
            importing.set()  # only once it has been seen unfinished
            return found

        monkeypatch.setattr(imports, "_is_being_imported", looked)
        seen: list[int] = []
        when_imported(late, lambda module: seen.append(module.value))
        assert seen == [7] and late not in imports._WATCH.awaited

    def test_its_own_code_is_not(self, late: str, tmp_path: Path) -> None:
        (tmp_path / f"{late}.py").write_text(
            "from overspill.imports import when_imported\n"
            "seen = []\n"
            "when_imported(__name__, seen.append)\n"
        )
        assert __import__(late).seen == []
        assert late in imports._WATCH.awaited  # the next import is announced

    def test_one_that_fails_in_the_other_thread_is_awaited_again(
        self, late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started, go = threading.Event(), threading.Event()
        monkeypatch.setattr(imports, "test_events", (started, go), raising=False)
        path = tmp_path / f"{late}.py"
        path.write_text(
            "from overspill import imports\n"
            "imports.test_events[0].set()\n"
            "assert imports.test_events[1].wait(60)\n"
            "raise ImportError('broken')\n"
        )

        def fails() -> None:
            with pytest.raises(ImportError, match="broken"):
                __import__(late)

        thread = threading.Thread(target=fails)
        thread.start()
        assert started.wait(60)
        look = imports._is_being_imported

        def looked(name: str) -> bool:
            found = look(name)
            go.set()
            return found

        monkeypatch.setattr(imports, "_is_being_imported", looked)
        seen: list[ModuleType] = []
        when_imported(late, seen.append)
        thread.join()
        assert seen == [] and late not in sys.modules
        path.write_text("value = 12345678901234567890\n")
        assert seen == [__import__(late)]


def test_overspill_imported_while_another_thread_imports_torch_registers() -> None:
    script = """
import sys, threading
from importlib.machinery import PathFinder

started, go = threading.Event(), threading.Event()


class Halfway:
    def find_spec(self, name, path, target=None):
        if name == "overspill.settings":  # asked for by Overspill's own code
            go.set()
        if name != "torch.version":  # asked for by torch's
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def waits(module):
            started.set()
            assert go.wait(60)
            execute(module)

        spec.loader.exec_module = waits
        return spec


sys.meta_path.insert(0, Halfway())
thread = threading.Thread(target=__import__, args=("torch",))
thread.start()
assert started.wait(60)
import overspill
thread.join()
from multiprocessing.reduction import ForkingPickler
kind = type(ForkingPickler._extra_reducers[sys.modules["torch"].Tensor]).__name__
assert kind == "ByPath", kind
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("other", ["ov.is_disk_backed", "__import__('overspill.tensors')"])
@pytest.mark.parametrize("first", ["torch", "other"])
def test_threads_that_import_at_the_same_time_end_well(other: str, first: str) -> None:
    script = f"""
import threading
import overspill as ov

start = threading.Barrier(2)


def import_torch():
    start.wait()
    import torch


def use_it():
    start.wait()
    {other}


threads = [threading.Thread(target=import_torch), threading.Thread(target=use_it)]
for thread in threads if {first!r} == "torch" else threads[::-1]:
    thread.start()
for thread in threads:
    thread.join()
import torch
from multiprocessing.reduction import ForkingPickler
from overspill.tensors.pickling import ByPath
assert isinstance(ForkingPickler._extra_reducers[torch.Tensor], ByPath)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
