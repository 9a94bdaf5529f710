"""Handles that were made on another machine: the same file opens, any other is told with both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import overspill as ov
from overspill.errors import StaleFileError
from overspill.linux.identity import host_identity

THERE = "elsewhere/00000000-0000-0000-0000-000000000000"


def altered(handle: ov.TensorHandle, **fields: Any) -> ov.TensorHandle:
    return replace(handle, span=replace(handle.span, **fields))


@pytest.fixture
def spilled(spill_dir: Path) -> torch.Tensor:
    return ov.spill_tensor_to_disk(torch.arange(10), required=True)


@pytest.fixture
def sent(spilled: torch.Tensor) -> Iterator[ov.TensorHandle]:
    yield altered(ov.handle(spilled), host=THERE)


def test_what_is_missing_here_names_both_machines(sent: ov.TensorHandle) -> None:
    told = f"sent from {THERE}, and this is {host_identity()}"
    with pytest.raises(StaleFileError, match=re.escape(told)):
        altered(sent, path="/nowhere/array").open()


def test_a_shared_file_opens_whatever_its_device_is_called_here(sent: ov.TensorHandle) -> None:
    here = sent.open().data_ptr()
    sent = altered(sent, identity=replace(sent.span.identity, device=12345))
    assert sent.open().tolist() == list(range(10))
    assert sent.open().data_ptr() == here  # mapped once
    with pytest.raises(StaleFileError, match="replaced"):
        altered(sent, host=host_identity()).open()


@pytest.mark.parametrize("birth_time_ns", [1, None])
def test_another_file_of_the_same_inode_and_size_is_not_read(
    sent: ov.TensorHandle, birth_time_ns: int | None
) -> None:
    sent = altered(sent, identity=replace(sent.span.identity, birth_time_ns=birth_time_ns))
    with pytest.raises(StaleFileError, match=f"is another file .*sent from {THERE}"):
        sent.open()


def test_another_size_is_told_as_such(sent: ov.TensorHandle, spilled: torch.Tensor) -> None:
    nbytes = sent.span.identity.nbytes
    sent = altered(sent, identity=replace(sent.span.identity, nbytes=nbytes * 2))
    with pytest.raises(StaleFileError, match=f"{nbytes} bytes .*sent from {THERE}"):
        sent.open()
