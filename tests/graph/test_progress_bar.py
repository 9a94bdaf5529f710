"""Bars: of which kind, and when a new one begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from overspill.graph import progress_bar
from overspill.graph.progress_bar import event_listener

# A notebook's kernel, as tqdm recognises one; with and without ipywidgets.
NOTEBOOK = """
import importlib.util, sys, types, warnings
warnings.simplefilter("always")
shell = types.SimpleNamespace(config={{"IPKernelApp": {{}}}})
ipython = types.ModuleType("IPython")
ipython.get_ipython = lambda: shell
sys.modules["IPython"] = ipython
sys.modules["ipykernel.zmqshell"] = types.ModuleType("ipykernel.zmqshell")
{widgets}
spec = importlib.util.spec_from_file_location("bars", sys.argv[1])
bars = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bars)
print([base.__module__ for base in bars.tqdm.__mro__])
with bars.event_listener(True) as listen:
    {used}
"""
NONE = 'sys.modules["ipywidgets"] = None; sys.modules["IPython.html.widgets"] = None'
WIDGETS = """
class Widget:
    def __init__(self, *_, **__): pass
widgets = types.ModuleType("ipywidgets")
widgets.IntProgress = widgets.HTML = widgets.HBox = widgets.FloatProgress = Widget
display = types.ModuleType("IPython.display")
display.display = print
ipython.display = display
sys.modules["ipywidgets"], sys.modules["IPython.display"] = widgets, display
"""
EVENT = 'listen({"event": "progress", "phase": "count", "done": 1, "total": 2, "unit": "B"})'


def in_notebook(widgets: str, used: str) -> subprocess.CompletedProcess[str]:
    script = NOTEBOOK.format(widgets=widgets, used=used)
    return subprocess.run(
        [sys.executable, "-c", script, str(Path(progress_bar.__file__))],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_notebook_without_ipywidgets_gets_text_and_no_warning() -> None:
    done = in_notebook(NONE, EVENT)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr and "count" in done.stderr and "50%" in done.stderr


def test_a_notebook_with_ipywidgets_gets_its_own_bars() -> None:
    done = in_notebook(WIDGETS, "pass")
    assert done.returncode == 0, done.stderr
    assert "tqdm.notebook" in done.stdout


def test_a_phase_has_a_bar_and_the_next_another(capfd: pytest.CaptureFixture[str]) -> None:
    with event_listener(True) as listen:
        for phase, done in (("count", 1), ("count", 2), ("fill", 1), ("fill", 0)):
            listen({"phase": phase, "done": done, "total": 2, "unit": "rows"})
        listen({"event": "summary"})
    told = capfd.readouterr().err
    assert told.count("count: 100%") == 1 and told.count("fill:   0%") >= 1 and "rows" in told


def test_a_callable_gets_the_events_and_nobody_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, object]] = []
    event = {"phase": "count", "done": 1, "total": 2, "unit": "rows"}
    with event_listener(seen.append) as listen:
        listen(event)
    for nobody in (None, False):
        with event_listener(nobody) as listen:
            listen(event)
    assert seen == [event] and capfd.readouterr().err == ""
