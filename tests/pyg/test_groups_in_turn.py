"""Groups of batches that take turns: the next one is made in a thread, and is the one asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from overspill.errors import StaleFileError
from overspill.pyg.groups import GroupsInTurn
from overspill.pyg.seeds import NodeRequest


class Made:
    """Stands for a group: what it was made of, and where."""

    def __init__(self, requests: Sequence[NodeRequest], side: int) -> None:
        self.requests, self.side = list(requests), side
        self.thread, self.was_read = threading.current_thread(), False

    def is_of(self, requests: Sequence[NodeRequest]) -> bool:
        return [held.index for held in self.requests] == [held.index for held in requests]

    def read(self) -> None:
        self.was_read = True


def request(index: int) -> NodeRequest:
    ids = np.arange(3) + index
    return NodeRequest(epoch=0, index=index, input_ids=ids, seeds=ids)


def lane(groups: int, size: int = 2) -> list[NodeRequest]:
    """The requests that begin groups, each told the one after it."""
    held = [tuple(request(size * i + j) for j in range(size)) for i in range(groups)]
    return [
        replace(group[0], group=group, following=after)
        for group, after in zip(held, [*held[1:], ()], strict=True)
    ]


@pytest.fixture
def made() -> list[Made]:
    return []


@pytest.fixture
def turns(made: list[Made]) -> Iterator[GroupsInTurn]:
    def make(requests: Sequence[Any], side: int) -> Any:
        if any(held.index == 99 for held in requests):
            raise StaleFileError("gone", path="x")
        made.append(Made(requests, side))
        return made[-1]

    held = GroupsInTurn(make)
    yield held
    held.close()


def test_the_following_group_is_made_and_read_in_a_thread(
    turns: GroupsInTurn, made: list[Made]
) -> None:
    groups: list[Any] = [turns.begin(held) for held in lane(4)]
    turns.settle()
    assert groups == made and [group.side for group in groups] == [0, 1, 0, 1]
    here = threading.current_thread()
    assert [group.thread is here for group in groups] == [True, False, False, False]
    assert [group.was_read for group in groups] == [False, True, True, True]


def test_what_comes_for_another_pass_is_dropped(turns: GroupsInTurn, made: list[Made]) -> None:
    turns.begin(lane(2)[0])
    other: Any = turns.begin(lane(3)[2])
    assert other.is_of(lane(3)[2].group) and other.side == 0 and len(made) == 3


def test_its_error_is_raised_where_it_is_asked_for(turns: GroupsInTurn, made: list[Made]) -> None:
    bad = replace(request(99), group=(request(99),))
    first = replace(lane(1)[0], following=bad.group)
    turns.begin(first)
    turns.settle()
    with pytest.raises(StaleFileError, match="gone"):
        turns.begin(bad)
    again: Any = turns.begin(lane(1)[0])
    assert again.is_of(lane(1)[0].group)


def test_an_error_of_what_nobody_asks_for_is_nobodys(turns: GroupsInTurn) -> None:
    turns.begin(replace(lane(1)[0], following=(request(99),)))
    other: Any = turns.begin(lane(3)[1])
    assert other.is_of(lane(3)[1].group)
    turns.settle()


def test_closed_its_thread_ends(turns: GroupsInTurn) -> None:
    turns.begin(lane(2)[0])
    turns.close()
    assert not [held for held in threading.enumerate() if held.name.startswith("overspill-group")]
    again: Any = turns.begin(lane(2)[0])
    assert again.is_of(lane(2)[0].group)
