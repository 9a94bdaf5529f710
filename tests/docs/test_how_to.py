"""Each how-to page's problem happens under the limits it names, and its remedy cures it.

The programs are the page's own blocks: before.py fails, after.py does not.
"""

from __future__ import annotations

import codeop
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from page_blocks import ROOT, Block, blocks_of
from page_running import APART

from capabilities import requires
from confined import PythonResult, small_shm_command
from overspill.build import describe_build, run_build
from overspill.errors import DiskRefusedError
from overspill.linux.confine import MemoryGroup
from overspill.settings import child_environment

MIB, GIB = 1 << 20, 1 << 30
SHM_BYTES = 64 * MIB
TUTORIAL = ROOT / "docs" / "tutorial.md"
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
PASTED = [ROOT / name for name in APART] + [TUTORIAL]
Runner = Callable[..., PythonResult]


@pytest.fixture(autouse=True)
def a_directory_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("OVERSPILL_DIR", "OVERSPILL_RUN", "OVERSPILL_MIN", "GIGL_")):
            monkeypatch.delenv(name)


def page_blocks(page: str) -> list[Block]:
    return blocks_of(ROOT / "docs" / "how-to" / f"{page}.md")


def program(page: str, title: str) -> str:
    (found,) = [block.code for block in page_blocks(page) if block.title == title]
    return found


def is_quoted(page: str, stderr: str) -> bool:
    """Whether one of the error messages that the page quotes is in the output; numbers vary."""
    quoted = [block.code for block in page_blocks(page) if block.code.startswith("RuntimeError: ")]
    assert quoted, f"{page} quotes no error"
    words = [re.escape(" ".join(text.removeprefix("RuntimeError: ").split())) for text in quoted]
    told = " ".join(stderr.split())
    return any(re.search(re.sub(r"\d+", r"\\d+", one), told) for one in words)


def nothing_spilled(place: Path) -> bool:
    return not list(place.glob("**/*.bin"))


@requires("private_mount")
def test_bus_error(private_shm: Callable[[int], Runner], tmp_path: Path) -> None:
    before = program("bus-error", "before.py")
    killed = private_shm(SHM_BYTES)(before)
    assert killed.returncode != 0
    assert is_quoted("bus-error", killed.stderr), killed.stderr
    enlarged = private_shm(512 * MIB)(before).check()
    cured = private_shm(SHM_BYTES)(program("bus-error", "after.py")).check()
    assert cured.stdout == enlarged.stdout
    assert len(cured.stdout.splitlines()) == 4
    assert nothing_spilled(tmp_path)


@pytest.mark.memory
@requires("memory_cgroup")
def test_out_of_memory(run_python: Runner, tmp_path: Path) -> None:
    killed = run_python(program("out-of-memory", "before.py"), limit_bytes=GIB)
    assert killed.returncode == -signal.SIGKILL and killed.kills >= 1
    (said,) = killed.stdout.splitlines()  # and not the second line
    assert int(said.split()[0]) * MIB > GIB
    cured = run_python(program("out-of-memory", "after.py"), limit_bytes=GIB).check()
    first, rows, report = cured.stdout.splitlines()
    assert cured.kills == 0
    assert int(first.split()[0]) * MIB < GIB
    assert rows == "1048576 rows, the last is 1040384"
    assert "limit 1.0 GiB" in report
    assert nothing_spilled(tmp_path)


@requires("private_mount", "memory_cgroup")
def test_share_a_tensor(private_shm: Callable[[int], Runner], tmp_path: Path) -> None:
    page = "share-a-tensor"
    died = private_shm(SHM_BYTES)(program(page, "before.py"))
    assert died.returncode != 0
    # Before torch 2.10 it is the signal of which the page speaks.
    assert died.returncode == -signal.SIGBUS or is_quoted(page, died.stderr), died.stderr
    # 8 copies would not fit: they are 1 GiB by themselves.
    cured = private_shm(SHM_BYTES)(program(page, "after.py"), limit_bytes=GIB).check()
    assert cured.kills == 0
    placement, filled = cured.stdout.splitlines()
    assert filled == str([float(part) for part in range(8)])
    assert "home='disk'" in placement
    assert nothing_spilled(tmp_path)


@requires("private_mount")
@pytest.mark.parametrize("shm_bytes", [SHM_BYTES, 512 * MIB])
def test_share_a_tensor_without_a_memory_limit(
    private_shm: Callable[[int], Runner], shm_bytes: int
) -> None:
    # The default threshold grows with the free memory, and the tensor would be below it.
    cured = private_shm(shm_bytes)(program("share-a-tensor", "after.py")).check()
    assert "home='disk'" in cured.stdout.splitlines()[0]
    assert cured.stdout.splitlines()[1] == str([float(part) for part in range(8)])


@pytest.mark.memory
@requires("memory_cgroup", "private_mount")
def test_from_gigl(private_shm: Callable[[int], Runner]) -> None:
    told, run = "shared True 1\n", private_shm(GIB)  # where a killed torch leaves its name
    killed = run(program("from-gigl", "before.py"), limit_bytes=640 * MIB)
    assert killed.returncode == -signal.SIGKILL and killed.kills >= 1 and not killed.stdout
    cured = run(program("from-gigl", "after.py"), limit_bytes=640 * MIB).check()
    assert (cured.stdout, cured.kills) == (told, 0)


def test_from_gigl_with_its_variables_and_a_child_that_exits(
    run_python: Runner, tmp_path: Path
) -> None:
    (command,) = [b.code for b in page_blocks("from-gigl") if b.code.startswith("GIGL_")]
    *variables, _python, script = command.split()
    env = dict(one.split("=") for one in variables)
    assert len(env) == 2
    env["GIGL_TENSOR_SPILL_DIR"] = str(tmp_path / "spill")
    done = run_python(program("from-gigl", script), env=env).check()
    values = [float(128 * 1000 + place) for place in range(3)]
    assert done.stdout.splitlines() == ["0 True (0, 128)", f"{values} [1, 2]"]


@pytest.mark.memory
@requires("memory_cgroup", "private_mount")
def test_joblib(
    private_shm: Callable[[int], Runner],
    memory_group: Callable[[int], MemoryGroup],
    tmp_path: Path,
) -> None:
    page, shm_bytes = "other-libraries", 256 * MIB
    (tmp_path / "before.py").write_text(program(page, "before.py"))
    group, printed = memory_group(GIB), tmp_path / "printed"
    # Into a file: joblib's processes outlive a parent that is killed, and would keep a pipe open.
    with printed.open("w") as out:
        argv = small_shm_command([sys.executable, "before.py"], shm_bytes)
        killed = subprocess.run(group.command(argv), stdout=out, check=False)
    assert killed.returncode != 0 and group.kill_count() >= 1
    assert printed.read_text() == ""
    cured = private_shm(shm_bytes)(program(page, "after.py"), limit_bytes=GIB).check()
    assert (cured.stdout, cured.kills) == (f"{98_304.0 * 1024}\n", 0)
    assert nothing_spilled(tmp_path)


@pytest.fixture
def shell(memory_group: Callable[[int], MemoryGroup], tmp_path: Path) -> Callable[[str], str]:
    """Runs a command in a memory group of 1 GiB, and gives what it printed."""
    group = memory_group(GIB)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(command: str) -> str:
        done = subprocess.run(
            group.command(["/bin/sh", "-c", command]),
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=child_environment(PATH=path, COLUMNS="100"),
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert group.kill_count() == 0
        return done.stdout

    return run


@pytest.mark.memory
@requires("memory_cgroup")
def test_billion_edges_at_a_thousandth(shell: Callable[[str], str], tmp_path: Path) -> None:
    printed: dict[str, str] = {}
    for block in page_blocks("billion-edges"):
        if block.title:
            (tmp_path / block.title).write_text(block.code)
        for command in block.commands() if block.language == "console" else ():
            printed[" ".join(command.split()[:2])] = shell(command)
    # The arithmetic, at the size that the page is about and at the one that was made.
    assert planned_bytes(printed["python plan.py"]) == {
        "input files": 29_200_000_000,
        "dataset": 17_600_000_008,
        "most on disk": 46_800_000_008,
    }
    planned = planned_bytes(shell("python plan.py 1e6"))
    inputs = sum(path.stat().st_size for path in tmp_path.glob("*.npy"))
    arrays = [path.stat().st_size for path in (tmp_path / "graph").rglob("*.safetensors")]
    assert len(arrays) == 4
    # The headers: 128 bytes of each .npy file, a page of each array.
    assert inputs - 3 * 128 == planned["input files"]
    assert sum(arrays) - 4 * 4096 == planned["dataset"]
    assert "1,000,000" in printed["overspill info"]
    projected, learned, stats = printed["python train.py"].splitlines()
    assert int(projected.split()[1]) < 1024
    assert float(learned.split()[-1]) < 2.0  # chance is ln 16, 2.77
    assert "batches=" in stats


@requires("loop_device")
def test_billion_edges_need_the_disk_that_the_page_says(
    loop_disk: Callable[[int], Path], tmp_path: Path
) -> None:
    edges, nodes = 1_000_000_000, 50_000_000
    files = {
        "edges": claimed_array(tmp_path / "edges.npy", np.int64, (2, edges)),
        "x": claimed_array(tmp_path / "x.npy", np.float16, (nodes, 128)),
        "y": claimed_array(tmp_path / "y.npy", np.int64, (nodes,)),
    }
    out = loop_disk(8 * MIB) / "graph"
    features = {name: files[name] for name in ("x", "y")}
    with pytest.raises(DiskRefusedError) as refused:
        run_build(describe_build(out, edges=files["edges"], node_features=features))
    assert refused.value.needed_bytes == pytest.approx(46_800_000_000 - 29_200_000_000, rel=1e-3)
    # Without features it is topology and scratch, 12 bytes an edge.
    with pytest.raises(DiskRefusedError) as refused:
        run_build(describe_build(out, edges=files["edges"], num_nodes=nodes))
    assert refused.value.needed_bytes == pytest.approx(12 * edges + 8 * nodes, rel=1e-2)


def claimed_array(path: Path, dtype: type, shape: tuple[int, ...]) -> Path:
    """A .npy file of zeros that takes no room on the disk."""
    held = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, held)
        file.truncate(file.tell() + int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return path


def planned_bytes(printed: str) -> dict[str, int]:
    rows = re.findall(r"^(.+?) +[\d.]+ GB +(\d+) bytes$", printed, re.MULTILINE)
    return {name: int(number) for name, number in rows}


@pytest.mark.parametrize("page", PASTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_pasted_into_the_interpreter(page: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.kind == "run"]
    assert blocks or page != TUTORIAL
    pasted_line_by_line("".join(block.code for block in blocks), page.name)


def pasted_line_by_line(code: str, where: str) -> None:
    """As the interpreter takes pasted text: an empty line ends a statement of several lines.

    Of blocks, one after the other: the newline that ends a block is all that is between two.
    """
    held: list[str] = []
    for line in code.splitlines():
        held.append(line)
        try:
            complete = codeop.compile_command("\n".join(held), where, "single")
        except SyntaxError as error:
            pytest.fail(f"{where}: {error}: {held}")
        if complete is not None:
            held = []
    if held:
        pytest.fail(f"{where}: {held} goes on")


def test_pasting_is_checked_as_the_interpreter_does_it() -> None:
    pasted_line_by_line("for one in range(2):\n    one\n\none", "here")
    for text in (
        "for one in range(2):\n    one\none",
        "for one in range(2):\n    one\n",  # the last block, or the next one begins inside of it
        "def two():\n    one = 1\n\n    return one",
    ):
        with pytest.raises(pytest.fail.Exception):
            pasted_line_by_line(text, "here")


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "index"], ids=str)
def test_the_index_has_every_page_under_its_title(page: Path) -> None:
    title = page.read_text().splitlines()[0].removeprefix("# ")
    assert f"- [{title}]({page.name})" in (page.parent / "index.md").read_text()


def test_lightning(run_python: Runner, tmp_path: Path) -> None:
    apart = Path(sys.prefix) / "lightning"  # not where all would import it, PyG does as it finds it
    cora = Path("src/overspill/cli/demo/cora")
    shutil.copytree(ROOT / cora, tmp_path / cora)
    env = {"PYTHONPATH": str(apart)}
    done = run_python(program("other-libraries", "lightning_cora.py"), env=env).check()
    assert float(done.stdout.split()[-1]) > 0.8
