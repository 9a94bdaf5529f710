"""Make ids that are text dense: a keyed 64-bit hash stands for each, and the strings are stored.

Bottleneck: one sort of all strings a run, one of the distinct ones in the merge, and the device,
which carries each distinct string four times. Hashes are integers like any other raw ids, so that
`IdTranslator` translates them by rank; the strings travel once, to be stored in the order of their
hashes. Merging compares strings that share a hash, so within one input equal hashes are equal
strings; where two different ones collide (one chance in 10**4 at 50 million ids), all is read again
under the next key. The keys are 0, 1, ..., so the same input always gives the same dataset.

Limits: strings of 1 MiB; memory as the plan says, whatever their number, and 4 MiB beside it where
there are strings of that length.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from overspill.build.directory import BuildDirectory
from overspill.build.ids.numbers import IdTranslator
from overspill.build.ids.text_collector import TextCollector
from overspill.build.ids.text_runs import TextRuns
from overspill.build.ids.text_sort import HashCollisionError
from overspill.build.pipeline import prefetched
from overspill.build.plan import BuildPlan
from overspill.build.readers.edges import Strings
from overspill.errors import FormatError
from overspill.storage.records import FileRecord
from overspill.storage.texts import StoredTexts, text_hashes

Ids = npt.NDArray[np.int64]
_log = logging.getLogger("overspill")
# Under good keys even a second attempt is rare: so many failures are no chance any more.
_MOST_SALTS = 8


@dataclass(frozen=True)
class TextIdRecords:
    """The files of a type's distinct string ids, by rising hash.

    Attributes:
        hashes: int64 (n,), strictly increasing.
        offsets: int64 (n + 1,), where each string begins in `data`, and the end of the last.
        data: uint8, UTF-8.
        salt: Key of the hash.
    """

    hashes: FileRecord
    offsets: FileRecord
    data: FileRecord
    salt: int


def store_distinct_strings(
    pieces: Callable[[], Iterator[Strings]],
    directory: BuildDirectory,
    *,
    prefix: str,
    plan: BuildPlan,
) -> TextIdRecords:
    """Store the distinct ones of some strings, in the order of their hashes.

    Memory as for ids that are integers: 40 bytes times `plan.run_ids`, beside the pieces. Disk,
    beside the result: twice the distinct strings and 12 bytes each, and the runs' duplicates.

    Args:
        pieces: Gives the strings, in any order; called again where another key is needed.
        directory: The build's directory.
        prefix: Where the files go in it.
        plan: Sizes of runs and windows.

    Raises:
        InputError: A string is longer than 1 MiB.
        DiskRefusedError: The disk refused.
        FormatError: Strings collide under every key, which no chance explains.
    """
    for salt in range(_MOST_SALTS):
        try:
            return _store(pieces, directory, prefix=prefix, plan=plan, salt=salt)
        except HashCollisionError:
            _log.info("two ids share a hash under key %d: reading them again", salt)
    raise FormatError(
        f"different ids share a hash under each of {_MOST_SALTS} keys",
        remedy="number these ids yourself, or report this: they seem to be made for it",
    )


def _store(
    pieces: Callable[[], Iterator[Strings]],
    directory: BuildDirectory,
    *,
    prefix: str,
    plan: BuildPlan,
    salt: int,
) -> TextIdRecords:
    # How many there are is known only after the merge, and the files are reserved for that many.
    with _runs(directory, "ids.merged") as once:
        with _runs(directory, "ids") as runs:
            _collect(pieces, runs, plan=plan, salt=salt)
            merged = runs.merged(max(1, plan.run_ids // 4), 3 * plan.run_ids)
            with closing(cast("Any", prefetched(merged))) as found:
                for piece in found:
                    once.append(piece)
        return _write(once, directory, prefix=prefix, plan=plan, salt=salt)


def _collect(
    pieces: Callable[[], Iterator[Strings]], runs: TextRuns, *, plan: BuildPlan, salt: int
) -> None:
    collector = TextCollector(
        runs,
        partial(_hashes, salt=salt),
        most_strings=max(1, plan.run_ids // 2),
        most_bytes=7 * plan.run_ids,
    )
    items = pieces()
    try:
        for strings in items:
            collector.add(strings)
    finally:
        getattr(items, "close", lambda: None)()
    collector.finish()


def _hashes(strings: Strings, *, salt: int) -> Ids:
    return text_hashes(strings.offsets, strings.data, salt=salt)


def _runs(directory: BuildDirectory, name: str) -> TextRuns:
    places = [directory.file(f"scratch/{name}.{part}") for part in ("hashes", "lengths", "data")]
    return TextRuns((places[0], places[1], places[2]))


def _write(
    once: TextRuns, directory: BuildDirectory, *, prefix: str, plan: BuildPlan, salt: int
) -> TextIdRecords:
    with ExitStack() as stack:
        hashes, offsets, data = (
            stack.enter_context(
                directory.array(f"{prefix}/{name}.safetensors", dtype=dtype, shape=(length,))
            )
            for name, dtype, length in (
                ("ids", "int64", once.count),
                ("id_offsets", "int64", once.count + 1),
                ("id_text", "uint8", once.nbytes),
            )
        )
        end = np.zeros(1, np.int64)
        offsets.append(end)
        for piece in once.in_order(max(1, plan.run_ids // 4), 3 * plan.run_ids):
            ends = end + np.cumsum(piece.lengths, dtype=np.int64)
            end = ends[-1:].copy()
            hashes.append(piece.hashes)
            offsets.append(ends)
            data.append(piece.data)
    return TextIdRecords(hashes.result, offsets.result, data.result, salt)


class TextTranslator:
    """String ids to ranks, over the mapped files. One thread at a time.

    Takes 2 MiB whatever the number of ids, and reads their hashes once, in order.

    Args:
        directory: The dataset's directory.
        records: What `store_distinct_strings` returned.
    """

    def __init__(self, directory: Path, records: TextIdRecords) -> None:
        self._ranks = IdTranslator(directory / records.hashes.path, records.hashes)
        self._texts = StoredTexts(directory, {"offsets": records.offsets, "data": records.data})
        self._salt = records.salt

    def translate(self, raw: Strings) -> Ids:
        """The dense ids of strings that were all stored; takes 32 bytes a lookup.

        Hashes are enough: of the strings that were stored, no two share one.

        Raises:
            FormatError: One is not known.
        """
        return self._ranks.translate(_hashes(raw, salt=self._salt))

    def find(self, raw: Strings) -> Ids:
        """The dense ids of strings that need not be known: -1 where one is not.

        The strings themselves are compared, as an unknown one may share the hash of another.
        Takes 140 bytes a lookup.
        """
        places = self._ranks.find(_hashes(raw, salt=self._salt))
        known = np.flatnonzero(places >= 0)
        spans = raw.offsets[known], raw.offsets[known + 1] - raw.offsets[known]
        places[known[~self._texts.equal(places[known], spans, raw.data)]] = -1
        return places
