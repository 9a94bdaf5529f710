"""Each case runs at a tiny size: that it works, never how fast."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import command, hand_over, import_time, load, release, spill
from benchmarks.harness import Case, Contender, Result, figure, run_case
from benchmarks.peers import peer
from benchmarks.place import place_for
from benchmarks.stored import from_plain, read_json

SIZE = 1 << 20


def results_of(module: ModuleType, directory: Path, nbytes: int | None) -> list[Result]:
    with module.opened(directory, nbytes) as cases:
        return [run_case(case, rounds=1) for case in cases]


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.import_module

    def found(name: str, *rest: Any) -> ModuleType:
        if name in names:
            raise ModuleNotFoundError(name, name=name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", found)


@pytest.mark.parametrize("nbytes", [1, SIZE, 20 << 20])
def test_spill(nbytes: int, tmp_path: Path) -> None:
    (result,) = results_of(spill, tmp_path, nbytes)
    names = {spill.OURS, spill.MAPPED, spill.LIMIT, "numpy.memmap", "overspill, transposed source"}
    assert names <= set(result.rounds[0])
    assert all(sample.seconds > 0 for sample in result.rounds[0].values())
    assert list(tmp_path.iterdir()) == []


def test_spill_without_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "tensordict", "joblib", "safetensors.torch")
    (result,) = results_of(spill, tmp_path, SIZE)
    assert result.case.absent == [
        "safetensors.torch.save_file",
        "tensordict.MemoryMappedTensor",
        "joblib.dump",
    ]
    assert len(result.rounds[0]) == 6


def test_everybody_reads_back_what_was_written(tmp_path: Path) -> None:
    with load.opened(tmp_path, 8 << 12) as [case]:
        ways = {one.name: one.act for one in case.contenders}
        limit = ways.pop(load.LIMIT)
        outs = {name: act.args[1] for name, act in ways.items()}
        assert limit(None) == 8 << 12
        for name, act in ways.items():
            outs[name].zero_()
            act(None)
            assert outs[name].unique().numel() > 200, name  # random bytes, not the zeros
        assert run_case(case, rounds=1).rounds[0][load.OURS].seconds > 0
    assert {load.OURS, load.FROM_FILE, "numpy.memmap", "torch.load, mapped"} <= set(ways)
    assert list(tmp_path.iterdir()) == []


def test_load_without_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "tensordict", "joblib", "safetensors.torch")
    (result,) = results_of(load, tmp_path, 1)
    assert result.case.absent == ["safetensors", "tensordict.MemoryMappedTensor", "joblib.load"]
    assert len(result.rounds[0]) == 5


def test_hand_over(tmp_path: Path) -> None:
    (result,) = results_of(hand_over, tmp_path, 128 << 10)
    assert len(result.rounds[0]) == 10
    ours = [name for name in result.rounds[0] if name.startswith("overspill")]
    for name in ours:
        assert 0 < figure(result.rounds, of=name, name="payload bytes").high < 1024
    assert list(tmp_path.iterdir()) == []


def test_a_receiver_that_died_is_not_waited_for() -> None:
    with hand_over.Receiver() as receiver:
        receiver._process.kill()
        receiver._process.join()
        with pytest.raises((EOFError, OSError)):
            receiver.send(0)
            receiver.send(0)


def test_release_gives_back_every_page_where_fadvise_alone_gives_none(tmp_path: Path) -> None:
    clean, dirty = results_of(release, tmp_path, SIZE)
    for result, kind in ((clean, "clean"), (dirty, "dirty")):
        ours, alone = f"release_page_cache, {kind}", f"posix_fadvise alone, {kind}"
        assert figure(result.rounds, of=ours, name="bytes given back").median == SIZE
        assert figure(result.rounds, of=ours, name="share left in memory").median == 0
        assert figure(result.rounds, of=alone, name="bytes given back").median < SIZE
    assert list(tmp_path.iterdir()) == []


def test_import(tmp_path: Path) -> None:
    (result,) = results_of(import_time, tmp_path, None)
    assert figure(result.rounds, of=import_time.OURS, name="numba imported").high == 0
    assert figure(result.rounds, of=import_time.OURS, name="threads started").high == 0
    assert figure(result.rounds, of=import_time.OURS, name="seconds on top of torch").low > 0


def test_a_missing_peer_is_none_and_a_broken_one_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert peer("json") is not None
    assert peer("no_such_peer") is None
    (tmp_path / "broken_peer.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        peer("broken_peer")


def test_the_command_prints_every_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    out = tmp_path / "out.json"
    arguments = ["--dir", str(disk), "--rounds", "1", "--size", "256KiB", "--json", str(out)]
    every = [spill.opened, hand_over.opened, release.opened]
    assert command.main(every, [*arguments, "--scaling", "1"]) == 0
    printed = capsys.readouterr().out
    for title in ("kernel", "## spill", "## hand-over", "## release", "## time against size"):
        assert title in printed
    held = from_plain(read_json(out))
    assert held.options == "--rounds 1 --size 256KiB --scaling 1" and held.seconds > 0
    assert not held.failed and len(held.results) == 4
    sizes = {(one.case, one.way): [at.size_bytes for at in one.points] for one in held.series}
    ours, others = ("spill 256.0 KiB", spill.OURS), ("spill 256.0 KiB", "numpy.memmap")
    assert sizes[ours] == [16 << 10, 64 << 10, 256 << 10] and others not in sizes
    assert sizes["hand-over to a spawned process", "overspill"] == [2 << 10, 32 << 10, 256 << 10]
    assert list(disk.iterdir()) == []


def test_a_benchmark_that_is_told_to_end_removes_what_it_wrote(tmp_path: Path) -> None:
    @contextmanager
    def opened(directory: Path, _nbytes: int | None) -> Iterator[list[Case]]:
        with place_for(directory, 1) as place:
            (place / "file").write_bytes(b"x")
            ended = Contender(name="ended", act=lambda _: os.kill(os.getpid(), signal.SIGTERM))
            yield [Case(name="case", contenders=[ended], baseline="ended")]

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        command.main([opened], ["--dir", str(tmp_path)])
    assert caught.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.requires("private_mount")
def test_the_command_says_why_it_cannot_run(
    tmp_path: Path, memory_disk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    told = ["--dir", str(memory_disk()), "--json", str(out)]
    assert command.main([spill.opened], told) == 2
    assert "remedy: pass --dir" in capsys.readouterr().err
    assert "remedy: pass --dir" in from_plain(read_json(out)).failed


@pytest.mark.parametrize(
    "arguments", [["--rounds", "0"], ["--size", "much"], ["--dir", "/no/such/place"], ["--nothing"]]
)
def test_a_bad_option_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main([spill.opened], arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err
