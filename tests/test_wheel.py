"""The wheel, installed and used from outside the source tree, by a person and by a type checker."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest

import overspill

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "overspill"
# Their types are not what is looked at, and take minutes to read.
MYPY = """
[mypy]
strict = true
[mypy-torch.*,torch_geometric.*,numpy.*,numba.*,pyarrow.*,psutil.*,tqdm.*]
follow_imports = skip
ignore_missing_imports = true
"""
PROGRAM = """
from pathlib import Path

import overspill as ov
from overspill.pyg import NeighborLoader


def train(place: Path) -> int:
    dataset = ov.build_dataset(place, edges="edges.csv", node_features={"x": "x.npy"})
    with ov.settings(spill_dir=place, min_bytes="1MiB") as held, ov.spill_scope() as scope:
        limit: int | None = held.min_bytes
        spilled = ov.spill_tensor_to_disk(dataset.features("x"), required=True)
        scope.keep(spilled)
    report: ov.MemoryReport = ov.memory_report()
    loader = NeighborLoader(dataset, [10, 5], batch_size=4)
    return report.available_bytes + len(loader) + (limit or 0)
"""
WRONG = """
import overspill as ov

ov.build_dataset("out", edge="edges.csv")
ov.bild_dataset("out", edges="edges.csv")
ov.open_dataset(3)
size: str = ov.memory_report().available_bytes
"""
USED = """
import multiprocessing, pathlib, sys
import torch
import overspill as ov

def received(handle, pipe):
    pipe.send(float(handle.open().sum()))

if __name__ == "__main__":
    assert pathlib.Path(ov.__file__).is_relative_to(sys.prefix), ov.__file__
    cora = pathlib.Path(ov.__file__).parent / "cli" / "demo" / "cora"
    labels = {"y": cora / "labels.npy"}
    ds = ov.build_dataset("cora", edges=cora / "edges.csv", node_features=labels)
    print(ds.num_nodes, ds.features("y").shape)
    with ov.settings(spill_dir="spill", min_bytes=1):
        spilled = ov.spill_tensor_to_disk(torch.ones(1000), required=True)
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        child = context.Process(target=received, args=(ov.handle(spilled), theirs))
        child.start()
        print(mine.recv())
        child.join()
        ov.discard(spilled)
"""


@dataclass(frozen=True)
class Installed:
    """The wheel, and the environment that it was installed into."""

    wheel: Path
    environment: Path

    def run(self, *argv: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, with nothing of this tree in sight."""
        program = [str(self.environment / "bin" / str(argv[0])), *map(str, argv[1:])]
        return subprocess.run(
            program,
            cwd=cwd,
            # No compiler, no linker and no shell either: what needs one cannot find it.
            env={"PATH": str(self.environment / "bin"), "HOME": str(cwd), "TMPDIR": str(cwd)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    place = tmp_path_factory.mktemp("wheel")
    build = ["hatchling", "build", "--target", "wheel", "--directory", str(place)]
    _done(["-m", *build], cwd=ROOT)
    (wheel,) = place.glob("*.whl")
    environment = place / "venv"
    venv.create(environment, symlinks=True)
    install = ["pip", "--python", str(environment), "install", "--quiet"]
    without = {"PATH": str(environment / "bin"), "HOME": str(place)}
    _done(["-m", *install, "--no-deps", "--no-index", str(wheel)], cwd=place, env=without)
    # What it needs is here already. Only now: pip would take this tree for the installed one.
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "these.pth").write_text(f"{site.getsitepackages()[0]}\n")
    yield Installed(wheel, environment)
    shutil.rmtree(place)


def _done(arguments: Sequence[str], *, cwd: Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_holds_the_package_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
        (told,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(told).decode())
    assert installed.wheel.name == f"overspill-{overspill.__version__}-py3-none-any.whl"
    mine = {
        f"overspill/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("overspill/")} == mine
    assert "overspill/py.typed" in mine and "overspill/cli/demo/cora/edges.csv" in mine
    assert {name.split("/")[0] for name in names} == {"overspill", told.split("/")[0]}
    assert (
        metadata["Requires-Python"] == ">=3.11" and metadata["License-Expression"] == "Apache-2.0"
    )
    needed = metadata.get_all("Requires-Dist", [])
    assert any(one.startswith("torch>=") for one in needed)


def test_it_is_used_from_anywhere(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "used.py").write_text(USED)
    done = installed.run("python", "used.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["2708 torch.Size([2708])", "1000.0"] and done.stderr == ""
    told = installed.run("overspill", "info", "cora", cwd=tmp_path)
    assert told.returncode == 0 and "2,708 nodes" in told.stdout, told.stderr
    version = installed.run("overspill", "--version", cwd=tmp_path)
    assert version.stdout == f"overspill {overspill.__version__}\n"
    shutil.rmtree(tmp_path / "spill")


def test_no_compiler_was_in_reach(installed: Installed, tmp_path: Path) -> None:
    """The tests beside this one would show nothing if there were one."""
    found = "import shutil; print([shutil.which(name) for name in ('cc', 'gcc', 'clang', 'ld')])"
    done = installed.run("python", "-c", found, cwd=tmp_path)
    assert done.stdout == "[None, None, None, None]\n", done.stderr


def test_what_it_needs_comes_without_a_compiler() -> None:
    """Nothing of its own is compiled at install; of kernels numba compiles, by its own LLVM."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["build-system"]["build-backend"] == "hatchling.build"
    assert not [path for path in PACKAGE.rglob("*") if path.suffix in {".so", ".c", ".cpp", ".pyx"}]
    assert "hooks" not in project["tool"]["hatch"].get("build", {})


@pytest.fixture(scope="module")
def checked(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What mypy says of a right program, a wrong one, and every public name."""
    place = tmp_path_factory.mktemp("typed")
    revealed = "\n".join(f"reveal_type(ov.{name})" for name in overspill.__all__)
    (place / "names.py").write_text(f"import overspill as ov\n{revealed}\n")
    (place / "program.py").write_text(PROGRAM)
    (place / "wrong.py").write_text(WRONG)
    (place / "mypy.ini").write_text(MYPY)
    python = installed.environment / "bin" / "python"
    options = ["--config-file", "mypy.ini", "--cache-dir", "cache", "--no-error-summary"]
    files = ["names.py", "program.py", "wrong.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--python-executable", str(python), *files],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == "" and done.returncode == 1, done.stderr
    yield done.stdout
    shutil.rmtree(place)


def test_a_right_program_is_right(checked: str) -> None:
    assert "program.py" not in checked


def test_a_wrong_one_is_told_where(checked: str) -> None:
    lines = [line for line in checked.splitlines() if line.startswith("wrong.py")]
    found = {int(line.split(":")[1]): line for line in lines if ": error: " in line}
    assert set(found) == {4, 5, 6, 7}, checked
    assert '"edge"' in found[4] and '"bild_dataset"' in found[5]


def test_every_public_name_has_a_type(checked: str) -> None:
    lines = [line for line in checked.splitlines() if "Revealed type is" in line]
    untyped = [line for line in lines if line.endswith('"Any"')]
    assert len(lines) == len(overspill.__all__) and not untyped, untyped
