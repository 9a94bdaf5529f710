"""What random reads go through: one file of a dataset, or the files of its parts together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from overspill.storage.records import FileRecord

_Ids = npt.NDArray[np.int64]


class ItemReader(Protocol):
    """Items of an array, read at random by number. Threads may read at the same time."""

    span_bytes: int

    @property
    def path(self) -> str:
        """Where the array lies, for messages."""
        ...

    def take(
        self,
        ids: _Ids,
        out: npt.NDArray[Any],
        *,
        places: _Ids | None = None,
        threads: int = 1,
    ) -> None:
        """Copy items; see `overspill.graph.paged.PagedArray.take`."""
        ...

    def check_unchanged(self) -> None:
        """Refuse to go on over a file that was cut, replaced or removed (StaleFileError)."""
        ...

    def present_share(self, ids: _Ids) -> float:
        """Which share of items is in memory already; 0 where that is not known."""
        ...

    def fits_cache(self) -> bool:
        """Whether rows are best read one batch after the other, from the page cache."""
        ...

    def expect_reuse(self) -> None:
        """Be told that rows will be read again and again: more may be read than is asked for."""
        ...


# By record, bytes from one item to the next, and bytes of an item.
Opened = Callable[[FileRecord, int, int], ItemReader]
