"""What importing the room takes, and what it says where Ray is missing."""

from __future__ import annotations

from pathlib import Path

from confined import run_script

SCRIPT = """
    import sys
    import overspill, overspill.pyg
    print("ray" in sys.modules)
    sys.modules["ray"] = None  # importing it fails
    try:
        import overspill.cluster
    except RuntimeError as error:
        print(type(error).__name__, error)
"""


def test_nothing_below_imports_ray_and_without_it_the_error_says_what_to_install(
    tmp_path: Path,
) -> None:
    imported, told = run_script(SCRIPT, tmp_path).check().stdout.splitlines()
    assert imported == "False"
    assert told.startswith("UnavailableError overspill.cluster works on Ray")
    assert told.endswith('remedy: pip install "overspill[ray]"')
