"""The records of a TFRecord file: blocks of it parsed by the kernel, and what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.readers.compressed import opened_stream
from overspill.build.readers.source import SourceFile
from overspill.build.readers.tfrecord_schema import KIND_NAMES, Feature, features_of
from overspill.errors import InputError
from overspill.kernels.tfrecord import (
    BYTES,
    FLOATS,
    MALFORMED,
    PARSED,
    WRONG_COUNT,
    WRONG_KIND,
    Parsed,
    Wanted,
    parse_examples,
)

_BLOCK_BYTES = 1 << 20
_MOST_RECORD_BYTES = 64 << 20

Text = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ExampleBlock:
    """Some records.

    Attributes:
        columns: Of each feature (records, values); of bytes, where they begin in `text` and how
            many they are.
        text: The bytes the records lie in.
        count: How many records.
        bytes_done: How far into the file they end.
    """

    columns: dict[str, npt.NDArray[Any]]
    text: Text
    count: int
    bytes_done: int


class ExampleStream:
    """The records of one file, in order."""

    def __init__(self, source: SourceFile) -> None:
        self.path = source.path
        self._source = source

    def blocks(self, features: Mapping[str, Feature], room: int) -> Iterator[ExampleBlock]:
        """Yield some features of all records, at most `room` records at a time.

        Raises:
            InputError: A record is damaged, cut, or its features are not as they should be.
        """
        names, held = list(features), list(features.values())
        wanted = _wanted(names, held, room)
        first = 0
        with opened_stream(self._source) as stream:
            kept = b""
            while piece := stream.read(_BLOCK_BYTES):
                block = kept + piece
                text, at = np.frombuffer(block, np.uint8), 0
                while True:
                    parsed = _room_for(wanted, room)
                    outcome = parse_examples(text, at, room, wanted, parsed)
                    count, passed = int(parsed.state[0]), int(parsed.state[1])
                    if count:
                        columns = _columns(held, parsed, room, count)
                        yield ExampleBlock(
                            dict(zip(names, columns, strict=True)), text, count, stream.done
                        )
                    at, first = at + passed, first + count
                    if outcome != PARSED:
                        which, found = int(parsed.state[3]), int(parsed.state[4])
                        if outcome in (WRONG_KIND, WRONG_COUNT):
                            raise self._unlike(first, names[which], held[which], outcome, found)
                        raise self._damaged(outcome, first)
                    self._require_small(int(parsed.state[2]), first)
                    if count < room:
                        break
                kept = block[at:]
        if kept:
            raise self._cut(first)

    def features(self) -> dict[str, Feature] | None:
        """What the first record holds; None where there is none.

        Raises:
            InputError: It is damaged, cut, or no Example.
        """
        nothing = _wanted((), (), 1)
        with opened_stream(self._source) as stream:
            held = b""
            while piece := stream.read(_BLOCK_BYTES):
                held += piece
                parsed = _room_for(nothing, 1)
                outcome = parse_examples(np.frombuffer(held, np.uint8), 0, 1, nothing, parsed)
                if outcome != PARSED:
                    raise self._damaged(outcome, 0)
                self._require_small(int(parsed.state[2]), 0)
                if parsed.state[0]:
                    return self._features_of(held[12 : int(parsed.state[1]) - 4])
        if held:
            raise self._cut(0)
        return None

    def _features_of(self, record: bytes) -> dict[str, Feature]:
        try:
            return features_of(record)
        except ValueError as error:
            raise self._damaged(MALFORMED, 0) from error

    def _require_small(self, nbytes: int, record: int) -> None:
        if not 0 <= nbytes <= _MOST_RECORD_BYTES:
            raise InputError(
                f"a record has {nbytes} bytes; at most {_MOST_RECORD_BYTES} are read",
                path=self.path,
                row=record,
                value=str(nbytes),
                remedy="check that the file is TFRecord, and whole",
            )

    def _cut(self, record: int) -> InputError:
        return InputError(
            f"{self.path} is cut short: its last record is not all there",
            path=self.path,
            row=record,
            remedy="fetch or make the file again",
        )

    def _damaged(self, outcome: int, record: int) -> InputError:
        told, more = "a record is no tf.Example", ""
        if outcome != MALFORMED:
            told = "a record is damaged: its checksum is another than what is stored"
            more = "; or is the file compressed, other than as .gz or .zst?"
        remedy = "fetch or make the file again" + more
        return InputError(told, path=self.path, row=record, remedy=remedy)

    def _unlike(
        self, record: int, name: str, wanted: Feature, outcome: int, found: int
    ) -> InputError:
        told, value = "a feature is missing", str(max(0, found))
        if outcome == WRONG_KIND:
            value = KIND_NAMES[found]
            told = f"a feature holds {value}, not {KIND_NAMES[wanted.kind]}"
        elif found >= 0:
            told = f"a feature has {found} values where the first record has {wanted.count}"
        return InputError(
            told,
            path=self.path,
            row=record,
            column=name,
            value=value,
            remedy="write every feature with one kind and number of values in every record",
        )


def _wanted(names: Sequence[str], features: Sequence[Feature], room: int) -> Wanted:
    encoded = [name.encode() for name in names]
    starts, ends = [], [0]
    filled = {False: 0, True: 0}
    for name, feature in zip(encoded, features, strict=True):
        ends.append(ends[-1] + len(name))
        starts.append(filled[feature.kind == FLOATS])
        filled[feature.kind == FLOATS] += room * _width(feature)
    kinds, widths = [feature.kind for feature in features], [_width(f) for f in features]
    arrays = [np.array(held, np.int64) for held in (ends, kinds, widths, starts)]
    return Wanted(np.frombuffer(b"".join(encoded), np.uint8), *arrays)


def _width(feature: Feature) -> int:
    return 2 if feature.kind == BYTES else feature.count


def _room_for(wanted: Wanted, room: int) -> Parsed:
    floats = wanted.kinds == FLOATS
    return Parsed(
        np.empty(room * int(wanted.widths[~floats].sum()), np.int64),
        np.empty(room * int(wanted.widths[floats].sum()), np.uint32),
        np.empty(len(wanted.kinds), np.int64),
        np.zeros(5, np.int64),
    )


def _columns(
    features: Sequence[Feature], parsed: Parsed, room: int, count: int
) -> list[npt.NDArray[Any]]:
    """Of each feature, (count, its width)."""
    starts = {False: 0, True: 0}
    found = []
    for feature in features:
        width, floats = _width(feature), feature.kind == FLOATS
        start = starts[floats]
        held = parsed.bits.view(np.float32) if floats else parsed.integers
        found.append(held[start : start + count * width].reshape(count, width))
        starts[floats] += room * width
    return found
