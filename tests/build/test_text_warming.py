"""Nothing is compiled once the plan is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from confined import PythonResult

WARMED = """
import itertools, sys
import numpy as np
from overspill.build.directory import BuildDirectory
from overspill.build.plan import BuildPlan
from overspill.build.readers.edges import Strings
from overspill.build.ids.text_ids import TextTranslator, store_distinct_strings
from overspill.build.ids.text_warming import warm_text_kernels
from overspill.kernels import jit
from texts import as_strings, numbers

class Undone(Exception):
    pass

warm_text_kernels()
before = {kernel: len(kernel.signatures) for kernel in jit._kernels}
assert sum(before.values()) > 8

def given():
    for offsets, data in itertools.product((True, False), repeat=2):
        held = as_strings(numbers(40))
        held = Strings(held.offsets.copy(), held.data.copy())
        held.offsets.flags.writeable, held.data.flags.writeable = offsets, data
        yield held

try:
    with BuildDirectory(sys.argv[1]) as directory:
        plan = BuildPlan(8, 2, 64, 2, 512, 16, 64)
        records = store_distinct_strings(given, directory, prefix="n", plan=plan)
        translator = TextTranslator(directory.path, records)
        for strings in given():
            found = translator.find(strings)
            assert np.array_equal(translator.translate(strings), found)
        raise Undone
except Undone:
    pass
for kernel in jit._kernels:
    assert len(kernel.signatures) == before[kernel], (kernel, kernel.signatures)
"""


def test_nothing_is_compiled_once_kernels_were_warmed(
    tmp_path: Path, run_python: Callable[..., PythonResult]
) -> None:
    run_python(WARMED, arguments=[tmp_path / "out"]).check()
