"""Holds the rules of the rooms: who may import whom, no cycle, what `import overspill` pulls in."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "overspill"

# From the ground up: a room may import the rooms before it in this list, and itself.
FLOORS = [
    "units",
    "imports",
    "errors",
    "settings",
    "linux",
    "kernels",
    "placement",
    "storage",
    "build",
    "tensors",
    "recording",
    "graph",
    "pyg",
    "cluster",
    "cli",
]
FORBIDDEN_NAMES = {"utils", "helpers", "common", "manager", "misc", "util"}
# Third-party modules and the only rooms that may import them.
HOMES = {
    "torch": {"tensors", "graph", "pyg", "cluster", "cli"},
    "numba": {"kernels"},
    "ctypes": {"linux"},
    "torch_geometric": {"pyg", "cli"},
    "ray": {"cluster"},
    "pyarrow": {"build"},
    "typer": {"cli"},
    "rich": {"cli"},
    "pickle": set(),
    "fcntl": {"linux"},
}
FILES = {"os", "io", "mmap", "pathlib", "shutil", "tempfile"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def room(path: Path) -> str:
    part = path.relative_to(SOURCE).parts[0]
    return part.removesuffix(".py")


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[tuple[str, int]]:
    tree = ast.parse(path.read_text())
    if room(path) == "__init__":
        # The public names, whose homes type checkers alone follow.
        tree.body = [node for node in tree.body if not is_for_type_checkers(node)]
    nodes: list[ast.AST] = list(tree.body) if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield node.module or "", node.lineno
            if node.module == "overspill":
                for alias in node.names:
                    yield f"overspill.{alias.name}", node.lineno


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_every_room_is_on_a_floor() -> None:
    rooms = {room(path) for path in modules()} - {"__init__"}
    assert rooms <= set(FLOORS)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_run_one_way(path: Path) -> None:
    mine = room(path)
    leaves = {"settings", "errors", "imports"}
    allowed = leaves if mine == "__init__" else set(FLOORS[: FLOORS.index(mine) + 1])
    for name, line in imports(path):
        parts = name.split(".")
        if parts[0] != "overspill" or len(parts) == 1 or parts[1] == "__version__":
            continue
        assert parts[1] in allowed, f"{path}:{line}: {mine} may not import {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_third_party_modules_have_one_home(path: Path) -> None:
    for name, line in imports(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or room(path) in homes, f"{path}:{line}: {name} is not at home here"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_command_line_imports_inside_functions(path: Path) -> None:
    if room(path) in {"cli", "__init__"}:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                assert not isinstance(inner, ast.Import | ast.ImportFrom), (
                    f"{path}:{inner.lineno}: an import inside {node.name}"
                )


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_settings_reads_the_environment(path: Path) -> None:
    if room(path) == "settings":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}:
            raise AssertionError(f"{path}:{node.lineno}: os.{node.attr} outside settings.py")


@pytest.mark.parametrize("room_name", ["placement", "kernels"])
def test_policy_and_kernels_touch_no_file(room_name: str) -> None:
    for path in (SOURCE / room_name).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"memmap", "fromfile", "tofile"}, f"{path}:{node.lineno}"
            called = getattr(node, "func", None)
            if isinstance(called, ast.Name):
                assert called.id != "open", f"{path}:{called.lineno}: opens a file"
        for name, line in imports(path):
            assert name.split(".")[0] not in FILES, f"{path}:{line}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_stay_small_and_are_named_for_what_they_hold(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400, path
    names = {part.removesuffix(".py") for part in path.relative_to(SOURCE).parts}
    assert not names & FORBIDDEN_NAMES
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            told = ast.get_docstring(node) is not None
            first = (node.body[0].end_lineno or 0) if told else node.body[0].lineno - 1
            assert (node.end_lineno or 0) - first <= 50, f"{path}: {node.name} is long"


def error_classes(paths: list[Path]) -> set[str]:
    """The classes among those of some files that are errors of ours."""
    bodies = [ast.parse(path.read_text()).body for path in paths]
    classes = [node for body in bodies for node in body if isinstance(node, ast.ClassDef)]
    found = {"OverspillError"}
    while more := {one.name for one in classes if found & {*map(ast.unparse, one.bases)}} - found:
        found |= more
    return found


LEAVES = error_classes([SOURCE / "errors.py"])
ERRORS = error_classes(modules())


def error_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls that say what is wrong: of a leaf, or of its own base by an error of another file."""
    own = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in ERRORS]
    inside = {node for one in own if one.name != "OverspillError" for node in ast.walk(one)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in LEAVES or (called == "super().__init__" and node in inside):
                yield node


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_errors_say_what_to_do(path: Path) -> None:
    lines = []
    for call in error_calls(ast.parse(path.read_text())):
        # Options by ** may hold one.
        if not {keyword.arg for keyword in call.keywords} & {"remedy", None}:
            lines.append(call.lineno)
    assert not lines, f"{path}: no remedy at lines {lines}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_is_unpickled_from_a_file(path: Path) -> None:
    """`pickle` itself has no home at all; these would bring it along."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant) and node.value.value is False, path
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"torch.load", "torch.save"}, f"{path}:{node.lineno}: {called}"


@pytest.mark.parametrize("name", ["build", "storage", "placement", "kernels", "linux", "recording"])
def test_a_build_is_a_process_of_its_own_and_never_a_fork(name: str) -> None:
    for path in (SOURCE / name).rglob("*.py"):
        for imported, line in imports(path):
            assert imported.split(".")[0] != "multiprocessing", f"{path}:{line}"


def test_kernels_are_single_threads_that_release_the_gil() -> None:
    for path in (SOURCE / "kernels").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "parallel":
                assert ast.unparse(node.value) == "False", f"{path}: numba's threads"
            if isinstance(node, ast.Attribute | ast.Name):
                name = node.attr if isinstance(node, ast.Attribute) else node.id
                assert name != "prange", f"{path}:{node.lineno}: numba's threads"
                assert name not in {"njit", "jit"} or path.stem == "jit", f"{path}:{node.lineno}"
    from overspill.kernels.gather import first_outside

    assert first_outside.targetoptions["nogil"] is True


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in ("pyg", "ray")]
    wanted = [one for many in (project["dependencies"], *extras) for one in many]
    declared = {re.split(r"[^\w-]", one)[0].replace("-", "_") for one in wanted}
    used = {name.split(".")[0] for path in modules() for name, _ in imports(path)}
    # Type checkers alone want the last: they bring it along.
    not_installed = set(sys.stdlib_module_names) | {"overspill", "typing_extensions"}
    assert used - not_installed == declared


def test_there_is_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    names = {dotted(path) for path in modules()}
    for path in modules():
        found = {name for name, _ in imports(path, top_level_only=True)}
        graph[dotted(path)] = found & names - {dotted(path), "overspill"}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a cycle: {' -> '.join((*trail, name))}"
        if name in done:
            return
        for following in graph[name]:
            # A package's face importing its own files is no cycle unless they import the face.
            visit(following, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def dotted(path: Path) -> str:
    parts = ("overspill", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_import_overspill_is_light() -> None:
    heavy = ["torch", "numba", "pyarrow", "ray", "torch_geometric", "numpy", "psutil"]
    script = (
        "import sys, threading, overspill\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
        "print(threading.active_count())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.split("\n")[:2] == ["[]", "1"]


@pytest.mark.parametrize("name", ["build", "storage", "kernels", "placement", "linux"])
def test_no_torch_below_tensors(name: str) -> None:
    script = f"import sys, overspill.{name}; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_the_public_names_are_pinned_and_resolve() -> None:
    import overspill

    for name in overspill.__all__:
        assert getattr(overspill, name) is not None
