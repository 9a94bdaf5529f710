from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path

import pytest

from overspill.errors import SettingsError
from overspill.settings import (
    child_environment,
    current_settings,
    export_run,
    inherited_run,
    openmp_threads,
    settings,
)

NAMES = [
    "OVERSPILL_DIR",
    "GIGL_TENSOR_SPILL_DIR",
    "OVERSPILL_MIN_BYTES",
    "GIGL_TENSOR_SPILL_MIN_BYTES",
    "OVERSPILL_RANDOM_ACCESS_RESERVE_BYTES",
    "GIGL_RANDOM_ACCESS_HEADROOM_RESERVE_BYTES",
    "OVERSPILL_SPILL_BATCHES",
    "OVERSPILL_RUN",
]


@pytest.fixture(autouse=True)
def blank_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_the_environment_is_read_at_each_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_settings().spill_dir is None
    monkeypatch.setenv("OVERSPILL_DIR", "/data/spill")
    monkeypatch.setenv("OVERSPILL_MIN_BYTES", "2MiB")
    now = current_settings()
    assert (now.spill_dir, now.min_bytes) == (Path("/data/spill"), 2 << 20)


def test_empty_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERSPILL_DIR", " ")
    assert current_settings().spill_dir is None


def test_gigl_names_are_honoured_below_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIGL_TENSOR_SPILL_DIR", "/gigl")
    monkeypatch.setenv("GIGL_TENSOR_SPILL_MIN_BYTES", "5")
    monkeypatch.setenv("GIGL_RANDOM_ACCESS_HEADROOM_RESERVE_BYTES", "6")
    now = current_settings()
    assert (now.spill_dir, now.min_bytes, now.random_access_reserve_bytes) == (Path("/gigl"), 5, 6)
    monkeypatch.setenv("OVERSPILL_DIR", "/ours")
    assert current_settings().spill_dir == Path("/ours")


def test_a_relative_directory_is_made_absolute_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with settings(spill_dir="spill"):
        monkeypatch.chdir("/")
        assert current_settings().spill_dir == tmp_path / "spill"


@pytest.mark.parametrize("text", ["cut\0short", "/tmp/\ud800"])
def test_a_directory_that_no_name_leads_to(text: str) -> None:
    with pytest.raises(SettingsError, match=r"OVERSPILL_DIR=.* leads to no directory") as caught:
        settings(spill_dir=text).__enter__()
    assert caught.value.remedy
    assert current_settings().spill_dir is None


@pytest.mark.parametrize("variable", ["OVERSPILL_DIR", "GIGL_TENSOR_SPILL_DIR"])
def test_a_relative_directory_of_the_environment_stays_where_it_was_first_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    monkeypatch.setenv(variable, "spill")
    monkeypatch.chdir(tmp_path)
    assert current_settings().spill_dir == tmp_path / "spill"
    monkeypatch.chdir("/")
    assert current_settings().spill_dir == tmp_path / "spill"
    script = "from overspill.settings import current_settings as c; print(c().spill_dir)"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == str(tmp_path / "spill")


def test_a_directory_beneath_one_that_is_gone_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("OVERSPILL_DIR", "spill")
    with pytest.raises(SettingsError, match="OVERSPILL_DIR='spill'"):
        current_settings()


def test_a_span_reaches_child_processes_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIGL_TENSOR_SPILL_DIR", "/gigl")
    monkeypatch.setenv("OVERSPILL_MIN_BYTES", "3")
    script = (
        "from overspill.settings import current_settings as c; print(c().spill_dir, c().min_bytes)"
    )
    with settings(spill_dir="/a", min_bytes="1KiB", spill_batches=True) as inside:
        assert (inside.min_bytes, inside.spill_batches) == (1024, True)
        told = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert told.stdout.split() == ["/a", "1024"]
        with settings(spill_dir=None):
            assert current_settings().spill_dir is None  # GiGL's name is not uncovered
    assert current_settings().spill_dir == Path("/gigl")
    assert current_settings().min_bytes == 3
    assert current_settings().spill_batches is False


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("OVERSPILL_DIR", "~nosuchuser/spill"),
        ("GIGL_TENSOR_SPILL_DIR", "~nosuchuser"),
        ("OVERSPILL_MIN_BYTES", "lots"),
        ("OVERSPILL_MIN_BYTES", "-1"),
        ("OVERSPILL_RANDOM_ACCESS_RESERVE_BYTES", "1.5.2GiB"),
        ("OVERSPILL_SHM_RESERVE_BYTES", "GiB"),
        ("OVERSPILL_DISK_LIMIT", "10 parsecs"),
        ("OVERSPILL_MEMORY_LIMIT", "nan"),
        ("GIGL_TENSOR_SPILL_MIN_BYTES", "2e"),
        ("GIGL_RANDOM_ACCESS_HEADROOM_RESERVE_BYTES", "none"),
        ("OVERSPILL_SPILL_BATCHES", "maybe"),
        ("OVERSPILL_ALLOW_COW_DISK", "2"),
    ],
)
def test_what_cannot_be_understood_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingsError, match=f"{variable}='{text}'"):
        current_settings()


def test_unknown_settings_are_refused_and_nothing_is_exported() -> None:
    with (
        pytest.raises(SettingsError, match="no setting is called 'spil_dir'"),
        settings(min_bytes=1, spil_dir="/a"),
    ):
        raise AssertionError("unreachable")
    assert current_settings().min_bytes is None


def test_a_run_is_inherited_until_taken_back() -> None:
    assert inherited_run() is None
    export_run("/a/run-1")
    try:
        assert inherited_run() == "/a/run-1"
        assert child_environment()["OVERSPILL_RUN"] == "/a/run-1"
    finally:
        export_run(None)
    assert inherited_run() is None


def test_a_child_finds_this_very_package() -> None:
    environment = child_environment(EXTRA="1")
    assert environment["EXTRA"] == "1"
    assert (Path(environment["PYTHONPATH"].split(":")[0]) / "overspill" / "settings.py").exists()


@pytest.mark.parametrize("known", [None, "/mine"])
def test_installed_packages_do_not_come_before_the_standard_library(
    monkeypatch: pytest.MonkeyPatch, known: str | None
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if known is not None:
        monkeypatch.setenv("PYTHONPATH", known)
    module = sys.modules["overspill.settings"]  # its name in the package may be the function's
    for place in site.getsitepackages():
        monkeypatch.setattr(module, "_ROOT", Path(place).resolve())
        assert child_environment().get("PYTHONPATH") == known
    monkeypatch.setattr(module, "_ROOT", Path("/elsewhere"))
    assert child_environment()["PYTHONPATH"].split(":") == ["/elsewhere", *filter(None, [known])]


@pytest.mark.parametrize(
    ("text", "threads"),
    [(None, None), ("", None), ("4", 4), (" 3 ", 3), ("8,2", 8), ("many", None), ("-1", None)],
)
def test_openmp_s_threads(
    monkeypatch: pytest.MonkeyPatch, text: str | None, threads: int | None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if text is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert openmp_threads() == threads
