"""Infinite and missing (NaN) numbers in arrays: counted or refused as the rows go by.

Costs one pass over what is in the processor's cache anyway; integers and booleans pass untouched.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.build.spec import NonFinite
from overspill.errors import InputError
from overspill.storage.records import STORED_DTYPES

# Exponent bits that are all ones in numbers that are not finite; e4m3fn has no infinity.
_EXPONENTS = {"bfloat16": 0x7F80, "float8_e5m2": 0x7C, "float8_e4m3fn": 0x7F}


class FiniteCheck:
    """Looks at every row of one array once.

    Args:
        name: The array's name.
        dtype: A name of `STORED_DTYPES`.
        row_shape: Shape of one row.
        policy: "keep" counts, "error" raises at the first.

    Attributes:
        count: Numbers found so far that are not finite.
    """

    def __init__(
        self, name: str, dtype: str, row_shape: tuple[int, ...], policy: NonFinite
    ) -> None:
        self.count = 0
        self._name, self._dtype, self._policy = name, dtype, policy
        self._items = max(1, math.prod(row_shape))

    def look(
        self, rows: npt.NDArray[Any], *, path: str, first_row: int, first_item: int = 0
    ) -> None:
        """Look at some rows (k, ...), or at a part of them, flat.

        Args:
            rows: The numbers.
            path: Their file.
            first_row: What people call the first row.
            first_item: How many numbers of that row, or of it and later ones, came before.

        Raises:
            InputError: One holds such a number, and the policy is "error"; names file and row.
        """
        wrong = self._wrong(rows)
        if wrong is None:
            return
        found = int(np.count_nonzero(wrong))
        self.count += found
        if found and self._policy == "error":
            place = int(np.argmax(wrong.reshape(-1)))
            raise InputError(
                f"array {self._name!r} holds a number that is not finite",
                path=path,
                row=first_row + (first_item + place) // self._items,
                column=self._name,
                value=self._told(rows.reshape(-1)[place]),
                remedy="clean the array, or say non_finite='keep', which counts them",
            )

    def _told(self, number: Any) -> str:
        exponent = _EXPONENTS.get(self._dtype)
        if exponent is None:
            return str(number)
        code, sign = int(number), 1 << 8 * STORED_DTYPES[self._dtype][1] - 1
        if self._dtype == "float8_e4m3fn" or code & (sign - 1) != exponent:
            return "nan"
        return "-inf" if code & sign else "inf"

    def _wrong(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
        exponent = _EXPONENTS.get(self._dtype)
        if exponent is not None:
            return np.asarray((rows & exponent) == exponent)
        return ~np.isfinite(rows) if rows.dtype.kind in "fc" else None
