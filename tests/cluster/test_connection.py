from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("ray")

import ray

from overspill.cluster import connection
from overspill.errors import ClusterError


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ray.exceptions.RaySystemError("bad token\nand a stack"), "refused: .*bad token.*TOKEN"),
        (ConnectionError("nobody there"), "no Ray cluster can be reached at this machine: nobody"),
    ],
)
def test_a_cluster_that_refuses_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception, told: str
) -> None:
    def init(**_: Any) -> None:
        raise refusal

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterError, match=told):
        connection.start_ray(None)
