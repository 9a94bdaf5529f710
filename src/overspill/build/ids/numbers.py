"""Make any int64 ids dense: sort the distinct ones out of core, then translate by rank.

Bottleneck: sorting two ids an edge, twice. The sorted ids become an array file of the dataset
(dense -> raw) and are looked up through a private, read-only mapping of it: page cache, not
anonymous memory, however many ids there are. An index of at most 2**18 blocks leads each lookup to
its block, a page as long as there are fewer than 134 million ids. Limits: once the ids outgrow the
page cache, each chunk of edges reads again the pages that its ids lie on, at the device's speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.passes.runs import RunCollector, SortedRuns
from overspill.build.plan import BuildPlan
from overspill.build.remedies import INPUTS_ALONE
from overspill.errors import FormatError
from overspill.kernels.translate import rank_ids
from overspill.linux.fetch import PAGE_BYTES, PageFetcher
from overspill.linux.pages import advise, resident_pages
from overspill.storage.arrays import map_array
from overspill.storage.records import FileRecord

Ids = npt.NDArray[np.int64]
_MOST_BLOCKS = 1 << 18
_IDS_A_PAGE = PAGE_BYTES // 8
_WINDOW_PAGES = 4096
_PROBES = 64


def store_distinct_ids(
    numbers: Iterable[Ids], directory: BuildDirectory, *, path: str, plan: BuildPlan
) -> FileRecord:
    """Write the distinct ids among `numbers`, in order, as an array file.

    Args:
        numbers: Ids in any order, in pieces; read once.
        directory: The build's directory.
        path: The array file's place in it.
        plan: Sizes of runs and windows.

    Returns:
        The file's record; its only dimension is the number of distinct ids.
    """
    with SortedRuns(directory.file("scratch/ids.runs"), dtype=np.int64, unique=True) as runs:
        collector = RunCollector(runs, plan.run_ids, dtype=np.int64, unique=True)
        for piece in numbers:
            collector.add(piece)
        collector.finish()
        # How many there are is known only after the merge, and a header comes first.
        with SortedRuns(directory.file("scratch/ids.merged"), dtype=np.int64, unique=True) as once:
            count = 0
            for piece in runs.merged(plan.run_ids):
                once.append(piece)
                count += len(piece)
            return _write(once, directory, path, count, plan)


def _write(
    once: SortedRuns, directory: BuildDirectory, path: str, count: int, plan: BuildPlan
) -> FileRecord:
    with directory.array(path, dtype="int64", shape=(count,)) as writer:
        for piece in once.in_order(plan.run_ids):
            writer.append(piece)
    return writer.result


class IdTranslator:
    """Raw ids to ranks, over the mapped file of the sorted ids. One thread at a time.

    Takes 2 MiB whatever the number of ids, and reads them once, in order.

    Args:
        path: The array file that `store_distinct_ids` wrote.
        record: What it returned.
    """

    def __init__(self, path: Path, record: FileRecord) -> None:
        self._mapping, self._ids = map_array(path, record)
        self._first_page = (self._mapping.nbytes - self._ids.nbytes) // PAGE_BYTES
        # Whole pages, so that a block is read as it is asked for.
        self._block_pages = 1
        while self._block_pages * _IDS_A_PAGE * _MOST_BLOCKS < len(self._ids):
            self._block_pages *= 2
        self._block_ids = self._block_pages * _IDS_A_PAGE
        self._starts = self._ids[:: self._block_ids].copy()
        # From here on read-ahead would fetch pages that nobody wants: megabytes a lookup.
        advise(self._mapping.address, self._mapping.nbytes, "random")
        self._fetcher = PageFetcher(self._mapping)

    def translate(self, raw: Ids) -> Ids:
        """The dense ids of raw ids, all of which are known; takes 24 bytes a lookup.

        Looked up in their order: a page is read once, whatever the number of lookups in it. Pages
        that are absent are asked for one window ahead of the lookups, 16 MiB at a time.

        Raises:
            FormatError: One is not known.
        """
        ranks, found = self._ranks(raw)
        if found < len(raw):
            raise FormatError(
                "an id appeared that the first reading of the edges did not show",
                remedy=INPUTS_ALONE,
            )
        return ranks

    def find(self, raw: Ids) -> Ids:
        """The same for ids that need not be known: -1 where one is not."""
        return self._ranks(raw)[0]

    def _ranks(self, raw: Ids) -> tuple[Ids, int]:
        """The place of each id, or -1, and how many have one."""
        ranks, found = np.full(len(raw), -1), 0
        if not len(raw) or not len(self._ids):
            return ranks, found
        order = np.argsort(raw)
        size = max(1, _WINDOW_PAGES // self._block_pages)
        absent = self._likely_absent(raw[order[:: max(1, len(order) // _PROBES)]])
        ahead = self._ask(raw, order[:size], absent=absent)
        for start in range(0, len(order), size):
            blocks, places = ahead, order[start : start + size]
            ahead = self._ask(raw, order[start + size : start + 2 * size], absent=absent)
            found += rank_ids(raw, places, blocks, self._ids, self._block_ids, ranks)
        return ranks, found

    def _ask(self, raw: Ids, places: Ids, *, absent: bool) -> Ids:
        """The blocks in which some ids would stand; their pages are asked for."""
        blocks = self._blocks_of(raw[places])
        if absent:
            self._ask_blocks(blocks[np.searchsorted(blocks, 0) :])
        return blocks

    def _ask_blocks(self, blocks: Ids) -> None:
        if len(blocks):
            wanted = blocks[np.flatnonzero(np.diff(blocks, prepend=-1))]
            # Neighbours are asked for together: fewer, larger reads.
            cuts = np.flatnonzero(np.diff(wanted) != 1) + 1
            firsts, lasts = wanted[np.r_[0, cuts]], wanted[np.r_[cuts, len(wanted)] - 1] + 1
            pages = self._pages_of(np.stack([firsts, lasts]))
            self._fetcher.request(pages[0], pages[1] - pages[0])

    def _likely_absent(self, some: Ids) -> bool:
        for page in self._pages_of(np.clip(self._blocks_of(some), 0, None)).tolist():
            if not resident_pages(self._mapping.address + page * PAGE_BYTES, 1)[0]:
                return True
        return False

    def _blocks_of(self, some: Ids) -> Ids:
        return np.searchsorted(self._starts, some, side="right") - 1

    def _pages_of(self, blocks: Ids) -> Ids:
        """Where blocks begin; the end of the file for the block after the last."""
        pages = self._first_page + blocks * self._block_pages
        return np.minimum(pages, -(-self._mapping.nbytes // PAGE_BYTES))
