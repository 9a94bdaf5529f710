"""The command as a person meets it: results on standard output, errors as messages."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import overspill
from overspill.cli.app import _Harmless
from overspill.cli.demo.cora import FILES
from small_graphs import random_graph
from typed_command import in_a_process as command

AS_GRAPH = Path(__file__).parents[1] / "data" / "as20graph.txt"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Cora, built once by the command."""
    out = tmp_path_factory.mktemp("built") / "cora"
    command(
        "build",
        *("--edges", FILES / "edges.csv"),
        *("--node-features", f"x={FILES / 'features.npy'}"),
        *("--node-features", f"y={FILES / 'labels.npy'}"),
        *("--memory-limit", "1GiB", "--out", out),
    )
    yield out
    shutil.rmtree(out)


@pytest.fixture
def cora(built: Path, tmp_path: Path) -> Path:
    """A copy of it to do harm to."""
    return Path(shutil.copytree(built, tmp_path / "cora"))


def test_build_info_verify(cora: Path) -> None:
    told = command("info", cora).stdout
    assert "2,708 nodes" in told
    assert "5,429 edges" in told
    assert "float16" in told and "2,708 x 1,433" in told
    assert "files as recorded" in command("verify", cora).stdout


def test_a_changed_byte_fails_verify(cora: Path) -> None:
    path = overspill.open_dataset(cora).manifest.node_types["node"].arrays["y"].path
    with (cora / path).open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    told = command("verify", cora, code=1).stderr
    assert path in told and "content changed" in told
    assert "Traceback" not in told


def test_every_damaged_file_is_listed(cora: Path) -> None:
    files = overspill.open_dataset(cora).manifest.node_types["node"].arrays
    (cora / files["y"].path).unlink()
    (cora / files["x"].path).write_bytes(b"short")
    for verb in ("verify", "info"):
        done = command(verb, cora, code=1)
        assert files["x"].path in done.stderr and files["y"].path in done.stderr
        assert "Traceback" not in done.stderr
    assert done.stdout.count("damaged") == 2 and "5,429 edges" in done.stdout


def test_snap_text_as_published_is_remapped(tmp_path: Path) -> None:
    done = command("build", "--edges", AS_GRAPH, "--out", tmp_path / "as")
    assert "6,474 nodes, 26,467 edges" in done.stdout
    dataset = overspill.open_dataset(tmp_path / "as")
    raw = np.unique(np.loadtxt(AS_GRAPH, dtype=np.int64, comments="#"))
    assert np.array_equal(dataset.node_ids().numpy(), raw)


def test_bad_input_is_a_message_and_nothing_is_left(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("src,dst\n0,1\n1,-2\n")
    told = command("build", "--edges", edges, "--out", tmp_path / "out", code=1).stderr
    assert "edges.csv" in told and "row 2" in told and "-2" in told
    assert "Traceback" not in told
    command("info", tmp_path / "out", code=1)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("from,to,weight\n0,1,2\n")
    told = command("build", "--edges", edges, "--out", tmp_path / "out", code=1).stderr
    assert "edges.csv" in told and "'src'" in told and "weight" in told
    assert "Traceback" not in told and not (tmp_path / "out").exists()


def test_features_with_the_wrong_number_of_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    told = command(
        "build",
        *("--edges", tmp_path / "edges.csv"),
        *("--node-features", f"x={tmp_path / 'x.npy'}"),
        *("--num-nodes", 2, "--out", tmp_path / "out"),
        code=1,
    ).stderr
    assert "x.npy" in told and "3 rows" in told and "2 nodes" in told
    assert "Traceback" not in told and not (tmp_path / "out").exists()


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    told = command(
        "build", "--edges", tmp_path / "edges.csv", "--out", tmp_path / "out", code=1
    ).stderr
    assert "thesis.tex" in told and "Traceback" not in told
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    told = command("--debug", "info", tmp_path, code=1).stderr
    assert "Traceback" in told and "FormatError" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ("build",),
        ("build", "--edges", "e.csv", "--out", "o", "--memory-limit", "lots"),
        ("build", "--edges", "e.csv", "--out", "o", "--node-features", "x.npy"),
        ("demo", "--size", "1KiB", "--dir", "/"),
        ("demo", "--memory-limit", "100MiB", "--dir", "/"),
        ("nonsense",),
    ],
)
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    assert "Traceback" not in command(*arguments, code=2).stderr


def test_a_missing_edge_file_is_named(tmp_path: Path) -> None:
    told = command("build", "--edges", tmp_path / "no.csv", "--out", tmp_path / "o", code=1).stderr
    assert "no.csv" in told
    assert "Traceback" not in told


def test_an_ambiguous_array_can_be_told_apart(tmp_path: Path) -> None:
    edges = tmp_path / "edges.npy"
    np.save(edges, np.array([[0, 1], [2, 3]]))
    told = command("build", "--edges", edges, "--out", tmp_path / "out", code=1).stderr
    assert "(2, 2)" in told
    command("build", "--edges", edges, "--out", tmp_path / "out", "--edge-axis", 0)
    assert overspill.open_dataset(tmp_path / "out").topology().indices.tolist() == [0, 2]


def test_version_and_help_answer_without_torch() -> None:
    assert command("--version").stdout.strip() == f"overspill {overspill.__version__}"
    script = (
        "import sys\nfrom overspill.cli import main\nsys.argv = ['overspill', '--help']\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for verb in ("build", "info", "verify", "demo", "clean"):
        assert verb in done.stdout


def test_partition_and_verify_its_parts(tmp_path: Path) -> None:
    random_graph(tmp_path / "whole")
    out = tmp_path / "parts"
    done = command("partition", tmp_path / "whole", "--parts", 3, "--out", out, "--method", "hash")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [f"part-{part:05d}" for part in range(3)]
    assert "3 parts, 400 nodes, 3,000 edges" in done.stdout
    assert "files in 3 parts as recorded" in command("verify", out).stdout
    book = out / overspill.open_partition(out).manifest.books["node"].file.path
    with book.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x07")
    assert "content changed" in command("verify", out, code=1).stderr


def test_a_partition_is_told_as_json(tmp_path: Path) -> None:
    random_graph(tmp_path / "whole")
    out = tmp_path / "parts"
    argv = ("partition", tmp_path / "whole", "--parts", 3, "--out", out, "--method", "hash")
    told = json.loads(command(*argv, "--json").stdout)
    held = overspill.open_partition(out)
    assert [one["path"] for one in told["parts"]] == [str(part.path) for part in held.parts]
    assert [one["nodes"] for one in told["parts"]] == [part.num_nodes for part in held.parts]
    assert (told["path"], told["method"]) == (str(out), "hash")
    assert (told["nodes"], told["edges"]) == (400, 3000)
    files = [Path(one["path"]) / file for one in told["parts"] for file in listed(one["path"])]
    assert told["size_bytes"] == sum(file.stat().st_size for file in files)
    assert told["seconds"] > 0


def listed(part: str) -> list[str]:
    return [record.path for record in overspill.open_dataset(part).manifest.files()]


def test_info_lists_everything_that_a_dataset_holds(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst,w\nann,bob,0.5\nann,bob,1.5\nbob,bob,2.5\n")
    command(
        "build",
        *("--edges", tmp_path / "e.csv", "--ids", "text", "--columns", "src,dst"),
        *("--edge-features", "w=::w", "--duplicates", "count", "--order", "degree"),
        *("--out", tmp_path / "out"),
    )
    told = command("info", tmp_path / "out").stdout
    for what in ("csc array w", "csc counts", "csc edge_ids", "hashes of ids", "text of ids, data"):
        assert what in told
    assert "numbers, renumbered" in told and "duplicates: 1" in told and "self loops: 1" in told


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["status", "--help"]])
def test_a_full_disk_under_help_is_one_line(arguments: list[str]) -> None:
    argv = [sys.executable, "-c", "from overspill.cli import main; main()", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "overspill: No space left on device\n")


@pytest.mark.parametrize("verb", ["status", "clean", "info", "verify"])
def test_a_path_cannot_act_on_the_terminal(verb: str, tmp_path: Path) -> None:
    told = command(verb, tmp_path / "none\x1b[31mred", code=1).stderr
    assert "\x1b" not in told and r"none\x1b[31mred" in told and "\n  what to do" in told


def test_what_the_library_warns_of_cannot_act_on_the_terminal() -> None:
    record = logging.LogRecord("overspill", logging.WARNING, "", 0, "kept %s", ("a\x1b[2J",), None)
    assert _Harmless("overspill: %(message)s").format(record) == r"overspill: kept a\x1b[2J"
