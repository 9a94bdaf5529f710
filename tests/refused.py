"""A build in the test's own process that must be refused, and what its error names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from naive import build_here
from overspill.errors import InputError


def refused(tmp_path: Path, edges: Path, **options: Any) -> InputError:
    """Build, expect an InputError about `edges`, and see that nothing is left."""
    with pytest.raises(InputError) as caught:
        build_here(tmp_path / "out", edges=edges, **options)
    assert not (tmp_path / "out").exists()
    return caught.value


def place(error: InputError) -> tuple[str | None, int | None, str | None, str | None]:
    name = None if error.path is None else Path(error.path).name
    return name, error.row, error.column, error.value


def text(path: Path, content: str) -> Path:
    path.write_bytes(content.encode(errors="surrogateescape"))
    return path
