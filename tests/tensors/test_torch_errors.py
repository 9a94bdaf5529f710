from __future__ import annotations

import errno

import pytest
import torch

from overspill.tensors.torch_errors import told_by_torch


@pytest.mark.parametrize(
    ("text", "told", "number"),
    [
        ("map </torch_1 (3)>: No (28)\nstack (99)", "map </torch_1 (3)>: No (28)", 28),
        ("no number (here)", "no number (here)", None),
        ("a name (7) and no number", "a name (7) and no number", None),
        ("", "", None),
    ],
)  # fmt: skip
def test_the_last_of_the_first_line(text: str, told: str, number: int | None) -> None:
    assert told_by_torch(RuntimeError(text)) == (told, number)


def test_this_torch_is_understood() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.UntypedStorage.from_file("/nowhere/file", shared=True, nbytes=8)
    told, number = told_by_torch(caught.value)
    assert number == errno.ENOENT and "/nowhere/file" in told and "\n" not in told
