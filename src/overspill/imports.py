"""Acts on a module once it has been imported, without importing it.

Overspill must enter itself into the tables of torch, cloudpickle, Ray and loky, and must not import
any of them for it. What is loaded already is acted upon at once. For the rest one finder waits on
``sys.meta_path``: it loads nothing itself, leaves the module's own loader in its place, and costs
one dictionary lookup for each module that is imported for the first time.
"""

from __future__ import annotations

import importlib._bootstrap
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


class _Watch(MetaPathFinder):
    """Finds what the other finders find, and has the awaited modules announced."""

    def __init__(self) -> None:
        self.awaited: dict[str, list[Action]] = {}
        self._looking = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.awaited or getattr(self._looking, "name", None) == name:
            return None
        self._looking.name = name
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._looking.name = None
        if spec is not None and spec.loader is not None:
            self._announce(spec.loader, spec.name)
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)  # finders of old have none
            if find is not None and finder is not self:
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _announce(self, loader: Loader, name: str) -> None:
        known = getattr(loader, "__dict__", {}).get("exec_module")
        if isinstance(known, _Announcement):
            known.names.add(name)
            return
        try:
            loader.exec_module = _Announcement(self, loader, name)  # type: ignore[method-assign]
        except AttributeError:  # a loader without attributes of its own: act when asked next
            return


class _Announcement:
    """A loader's exec_module that announces awaited modules; one loader may serve a whole zip.

    Attributes:
        names: The modules that were found and have not been executed yet.
    """

    def __init__(self, watch: _Watch, loader: Loader, name: str) -> None:
        self.names = {name}
        self._watch = watch
        self._loader = loader
        self._execute = loader.exec_module
        self._before = getattr(loader, "__dict__", {}).get("exec_module")

    def __call__(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is None or spec.name not in self.names:
            self._execute(module)
            return
        self.names.discard(spec.name)
        if not self.names:
            self._restore()
        self._execute(module)
        for action in self._watch.awaited.pop(spec.name, ()):
            action(module)

    def _restore(self) -> None:
        """The loader is its old self again, for whoever looks at it."""
        if self._before is None:
            vars(self._loader).pop("exec_module", None)
        else:  # of its own, or of another hook like this
            self._loader.exec_module = self._before  # type: ignore[method-assign]


_WATCH = _Watch()


def _is_being_imported(name: str) -> bool:
    """Whether the module is there and its own code has not run to its end."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def when_imported(name: str, action: Action) -> None:
    """Call `action` with a module: now where it is loaded, else right after it has been.

    Never imports it. Where another thread is importing it, waits until that has ended. An error of
    the action reaches whoever imports the module. Asked for by the module's own code, it is too
    late for this import and waits for the next.

    Args:
        name: The module's full name.
        action: Called once, after the module's own code has run: in the importing thread, or in
            this one where the import had begun.
    """
    if _is_being_imported(name):
        # Its loader runs already, so that no announcement comes. importlib's own way to wait for
        # another thread; it returns at once in the importing thread, and where that one waits for
        # a module which this one is importing.
        importlib._bootstrap._lock_unlock_module(name)  # type: ignore[attr-defined]
    loaded = sys.modules.get(name)
    if loaded is not None and not _is_being_imported(name):
        action(loaded)
        return
    _WATCH.awaited.setdefault(name, []).append(action)
    if _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)
