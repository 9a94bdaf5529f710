from __future__ import annotations

import torch

from overspill.tensors.ties import Tied, tied


def grouped(*tensors: torch.Tensor) -> list[list[int]]:
    """Which of the tensors are together, each group's whole first."""
    found = []
    for group in tied(list(enumerate(tensors))):
        wholes = [name for name, tensor in group.names if tensor is group.whole]
        found.append(wholes[:1] + sorted(name for name, _ in group.names if name != wholes[0]))
    return sorted(found)


def test_what_shares_no_memory_is_alone() -> None:
    assert grouped(torch.ones(3), torch.ones(3)) == [[0], [1]]
    base = torch.ones(10)
    assert grouped(base[:5], base[5:]) == [[0], [1]]  # of one storage, but of no memory


def test_parts_go_with_what_holds_them_in_any_order() -> None:
    base = torch.arange(100.0).view(10, 10)
    assert grouped(base[2], base.t(), base, base[::2, ::3]) == [[2, 0, 1, 3]]
    assert grouped(base, base.view(100)) == [[0, 1]]


def test_what_only_overlaps_is_alone() -> None:
    base = torch.arange(100.0)
    assert grouped(base[:60], base[40:]) == [[0], [1]]
    assert grouped(base[::2], base[2:20:2]) == [[0], [1]]  # the first has gaps


def test_twins_with_gaps_are_together() -> None:
    base = torch.arange(100.0)
    assert grouped(base[::2], base[::2], base[::3]) == [[0, 1], [2]]
    (group,) = tied([("a", base[::2]), ("b", base[::2])])
    stored = group.whole.clone()
    assert group.over(stored) == {"a": stored, "b": stored}


def test_other_dtypes_lie_on_whole_elements() -> None:
    base = torch.arange(100, dtype=torch.int16)
    assert grouped(base, base[4:12].view(torch.int64)) == [[0, 1]]
    assert grouped(base[1:], base[4:12].view(torch.int64)) == [[0], [1]]


def test_views_that_change_values_and_other_layouts_are_alone() -> None:
    base = torch.ones(4, dtype=torch.complex64)
    assert grouped(base, base.conj(), base.conj()) == [[0], [1, 2]]
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    assert grouped(quantized, torch.eye(3).to_sparse(), torch.ones(2)) == [[0], [1], [2]]


def test_a_part_stands_over_what_was_stored() -> None:
    base = torch.arange(60.0)[10:].view(5, 10)
    (group,) = tied([("part", base[1:, ::3]), ("whole", base)])
    stored = torch.empty(100)[7:57].view(5, 10).copy_(base)
    found = group.over(stored)
    assert found["whole"] is stored and torch.equal(found["part"], base[1:, ::3])
    assert found["part"].untyped_storage().data_ptr() == stored.untyped_storage().data_ptr()


def test_thousands_of_views_take_no_square_of_comparisons(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asked = []
    from overspill.tensors import ties

    real = ties._holds
    monkeypatch.setattr(ties, "_holds", lambda *both: asked.append(1) or real(*both))
    base = torch.arange(2000)
    groups: list[Tied[int]] = tied([(n, base[n : n + 1]) for n in range(2000)])
    assert len(groups) == 2000 and len(asked) <= 4000
