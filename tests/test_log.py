"""The logger "overspill": silent until a program decides what is shown."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "overspill"


@pytest.mark.parametrize(
    ("configured", "told"),
    [("", ""), ("logging.basicConfig(format='%(name)s: %(message)s')", "overspill: careful\n")],
)
def test_a_warning_is_shown_where_the_program_asked_for_it(configured: str, told: str) -> None:
    warning = "logging.getLogger('overspill').warning('careful')"
    script = f"import logging, overspill\n{configured}\n{warning}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", told)


def test_every_module_logs_to_that_logger_and_configures_none() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "logging.getLogger":
                assert ast.unparse(node) == "logging.getLogger('overspill')", path
            of_package = path in (SOURCE / "__init__.py", SOURCE / "cli" / "app.py")
            assert of_package or not called.endswith((".addHandler", "basicConfig")), path


def test_the_command_shows_warnings_as_its_own_words() -> None:
    script = (
        "import logging, sys\n"
        "from overspill.cli import app\n"
        "app.app = lambda: logging.getLogger('overspill').warning('careful')\n"
        "app.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "overspill: careful\n")
