"""Holds the rules of the code within a room: errors, names, options, comments, JSON, removal."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import typer

import overspill as ov
from overspill import errors
from overspill.cli.app import app
from overspill.settings import Settings
from test_architecture import FLOORS, SOURCE, modules, room

TESTS = Path(__file__).resolve().parent
# Not named after a room: what they hold is of several, or of none.
APART = {"benchmarks", "data", "docs", "faults", "memory", "process", "properties", "soak"}
# Exceptions that are no errors of Overspill's: each is caught in the room it is raised in.
SIGNALS = {"HashCollisionError", "SenderGoneError", "UnreadCellError", "UnwantedError"}
# What the doctor looks at, as a tree that tests replace; a command for people to paste; and a
# second description of an open file.
NAMES_THE_KERNELS_FILES = {
    "build/parting/staged_store.py",
    "cli/doctor/measure.py",
    "cli/doctor/remedies.py",
}
# Whole directories go here alone, which the same command has made.
REMOVES_TREES = {"cli/bench/steps.py", "cli/demo/verb.py"}
# In PyTorch Geometric's order of arguments.
PYG_SIGNATURES = {"NeighborLoader", "LinkNeighborLoader", "NeighborSampler"}
# Read at random through a mapping of their own, which nobody else sees.
READ_AT_RANDOM = {
    "build/ids/numbers.py",
    "build/renumber.py",
    "graph/paged.py",
    "storage/texts.py",
}
# Tested by what reads files with it.
NO_TEST_OF_ITS_OWN = {"tfrecord"}
Node = TypeVar("Node", bound=ast.AST)
VERBS = ["build", "info", "verify", "partition", "demo", "status", "clean", "bench", "doctor"]
TENSOR_NAMES = """
    prepare_spill_dir is_tensor_spilling_enabled is_disk_backed load_spilled_tensor
    spill_tensor_to_disk allocate_disk_backed allocate_preshared has_live_mapping
    release_page_cache release_page_cache_by_path share_memory share_memory_for_ipc
    concatenate_chunks residency plan_placement available_memory_bytes memory_report
    spill_batches settings record_memory handle discard spill_scope
"""
GRAPH_NAMES = """
    build_dataset open_dataset build_csr partition_dataset RangePartitionBook TensorPartitionBook
"""
VARIABLES = """
    DIR MIN_BYTES RANDOM_ACCESS_RESERVE_BYTES SHM_RESERVE_BYTES DISK_LIMIT MEMORY_LIMIT
    SPILL_BATCHES ALLOW_COW_DISK
"""


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@functools.cache
def parsed(path: Path) -> list[ast.AST]:
    """All of its nodes, the module first."""
    return list(ast.walk(ast.parse(path.read_text())))


def nodes(kind: type[Node], *leave_out: str) -> Iterator[tuple[str, Node]]:
    """Every node of a kind, named by its file and line; without those of some rooms or files."""
    for path in modules():
        if not {room(path), name_of(path)} & set(leave_out):
            for node in parsed(path):
                if isinstance(node, kind):
                    yield f"{name_of(path)}:{getattr(node, 'lineno', 0)}", node


def called(node: ast.Call) -> str:
    """What it calls, as `name` or `module.name`."""
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return f"{node.func.value.id}.{node.func.attr}"
    return node.func.id if isinstance(node.func, ast.Name) else ""


def test_errors_have_one_home() -> None:
    for place, node in nodes(ast.ClassDef, "errors"):
        if node.name not in SIGNALS:
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            raised = any(base.endswith(("Error", "Exception")) for base in bases)
            own = all(hasattr(errors, base) for base in bases)
            assert own or not raised, f"{place}: {node.name} is no error of overspill.errors"


def test_only_linux_names_the_kernel_s_files() -> None:
    for place, node in nodes(ast.Constant, "linux", *NAMES_THE_KERNELS_FILES):
        if isinstance(node.value, str):
            # Of one line: a docstring may name them.
            assert not re.match(r"/(proc|sys)\b.*\Z", node.value), f"{place}: {node.value}"


def test_a_broad_handler_passes_on_what_it_caught() -> None:
    for place, node in nodes(ast.ExceptHandler):
        caught = "Exception" if node.type is None else ast.unparse(node.type)
        within = list(ast.walk(node))
        raises = any(isinstance(one, ast.Raise) for one in within)
        # Whole, to the thread that waits for it.
        handed = any(isinstance(one, ast.Name) and one.id == node.name for one in within)
        broad = re.search(r"\b(Base)?Exception\b", caught)
        assert raises or handed or not broad, f"{place}: swallows what it caught"


def test_switches_are_given_by_name() -> None:
    """How many parameters there are at most is the linter's."""
    as_pyg_has_them = {
        id(method)
        for _, node in nodes(ast.ClassDef)
        if node.name in PYG_SIGNATURES
        for method in node.body
    }
    for place, node in nodes(ast.FunctionDef, "cli"):
        if id(node) not in as_pyg_has_them:
            values = [one.value for one in node.args.defaults if isinstance(one, ast.Constant)]
            switches = [value for value in values if isinstance(value, bool)]
            assert not switches, f"{place}: {node.name} takes a switch by its place"


def test_comments_are_few() -> None:
    for path in modules():
        lines = path.read_text().splitlines()
        told = sum(line.lstrip().startswith("#") for line in lines)
        most = 0.3 if room(path) == "linux" else 0.2
        assert told <= max(8, most * len(lines)), f"{path}: {told} comments in {len(lines)} lines"


def test_units_come_last_in_a_name_and_are_not_shortened() -> None:
    fields = [(place, ast.unparse(node.target)) for place, node in nodes(ast.AnnAssign)]
    for place, name in [*fields, *((place, node.arg) for place, node in nodes(ast.arg))]:
        # "bytes_done" tells of bytes; "bytes_limit" would be a limit.
        early = re.match(r"_?(bytes|seconds|ns|ms)_(limit|size|budget|total|timeout)", name)
        short = re.search(r"_(kb|mb|gb|sec|secs|msec|usec)\Z", name)
        assert not early and not short, f"{place}: {name}"


def test_nothing_is_removed_by_age_or_by_a_pattern() -> None:
    for place, node in nodes(ast.Attribute):
        # Of a source, st_mtime_ns is part of what it is; nobody else looks.
        assert node.attr not in {"st_mtime", "st_atime", "st_ctime", "getmtime"}, place
        trees = node.attr != "rmtree" or place.partition(":")[0] in REMOVES_TREES
        assert trees, f"{place}: a tree is removed"
    for place, node in nodes(ast.For):
        if re.search(r"\br?glob\(", ast.unparse(node.iter)):
            gone = re.search(r"\.(unlink|rmdir|remove)\(", ast.unparse(node))
            assert not gone, f"{place}: removed by a pattern"


def test_json_holds_no_nan() -> None:
    """But what a build's own process reads of its parent, both with Python's parser."""
    hashed = {
        id(inner)
        for _, node in nodes(ast.Call)
        if called(node).startswith("hashlib.")
        for inner in ast.walk(node)
    }
    for place, node in nodes(ast.Call, "build"):
        if called(node) in {"json.dumps", "json.dump"} and id(node) not in hashed:
            given = {one.arg: ast.unparse(one.value) for one in node.keywords}
            assert given.get("allow_nan") == "False", f"{place}: allow_nan=False"


def test_nothing_waits_by_the_clock() -> None:
    """One timer is meant: what `status --watch` looks at tells nobody when it changes."""
    found = [
        path.relative_to(TESTS.parent)
        for place in (SOURCE, TESTS, TESTS.parent / "benchmarks")
        for path in place.rglob("*.py")
        if path != Path(__file__) and re.search(r"\bsleep\(\w", path.read_text())
    ]
    assert found == [Path("src/overspill/cli/status.py")]


def test_a_machine_is_never_its_host_name() -> None:
    asks = [path for path in modules() if "gethostname" in path.read_text()]
    assert [name_of(path) for path in asks] == ["linux/identity.py"]


def test_tensors_that_are_handed_out_are_not_advised_random() -> None:
    advised = {
        place.partition(":")[0]
        for place, node in nodes(ast.Call, "linux")
        if called(node) == "advise" and ast.unparse(node.args[-1]) == "'random'"
    }
    assert advised == READ_AT_RANDOM


def test_every_verb_has_a_file_of_its_own() -> None:
    group = typer.main.get_command(app)
    assert set(group.commands) == {*VERBS, "cluster"}  # type: ignore[attr-defined]
    for verb in (*VERBS, "cluster"):
        places = SOURCE / "cli" / f"{verb}.py", SOURCE / "cli" / verb / "verb.py"
        (place,) = [place for place in places if place.exists()]
        assert re.search(rf"^(def {verb}\(|{verb} = typer)", place.read_text(), re.MULTILINE)


def test_tests_lie_where_what_they_test_does() -> None:
    held = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name[0] not in "._"}
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert held == rooms | APART and rooms <= set(FLOORS)


def test_every_kernel_is_tested_by_itself() -> None:
    text = "".join(path.read_text() for path in TESTS.rglob("*.py"))
    kernels = {path.stem for path in (SOURCE / "kernels").glob("[a-z]*.py")}
    assert kernels > NO_TEST_OF_ITS_OWN
    for kernel in kernels - NO_TEST_OF_ITS_OWN:
        assert re.search(rf"overspill\.kernels(\.| import .*\b){kernel}\b", text), kernel


def test_a_file_says_what_it_holds() -> None:
    for path in modules():
        module = parsed(path)[0]
        assert isinstance(module, ast.Module)
        assert not module.body or ast.get_docstring(module), path


def test_the_promised_names_and_settings_are_there() -> None:
    assert {*TENSOR_NAMES.split(), *GRAPH_NAMES.split()} <= set(ov.__all__)
    text = (SOURCE / "settings.py").read_text()
    assert all(f"OVERSPILL_{name}" in text for name in VARIABLES.split())
    assert Settings.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_the_linter_holds_its_share() -> None:
    ruff = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    # Docstrings, six parameters, broad handlers, print, unpickling, complexity.
    assert {"D", "PLR0913", "BLE", "T20", "S301", "S302", "C90"} <= set(ruff["select"])
    assert ruff["pylint"]["max-args"] == 6 and ruff["pydocstyle"]["convention"] == "google"
    loose = {pattern: set(rules) for pattern, rules in ruff["per-file-ignores"].items()}
    assert {one for one in loose if one.startswith("src")} == {"src/overspill/cli/**"}
    assert loose["src/overspill/cli/**"] == {"T20", "PLR0913"}
