"""A gather in a small memory group reads each page once: it never drives out what it asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from capabilities import requires
from confined import make_cold
from small_graphs import write_array

LIMIT_BYTES = 320 << 20
FILE_BYTES = 512 << 20


@requires("memory_cgroup")
def test_rows_from_a_file_larger_than_the_memory(
    tmp_path: Path, run_python: Callable[..., Any]
) -> None:
    rows = np.random.default_rng(1).integers(0, 255, (FILE_BYTES // 512, 512), dtype=np.uint8)
    record = write_array(tmp_path / "rows", rows)
    del rows
    make_cold(tmp_path / "rows")
    result = run_python(
        """
        import json, sys
        from pathlib import Path
        import numpy as np
        from overspill.graph.paged import PagedArray
        from overspill.linux.device_reads import device_bytes_read
        from overspill.storage.records import FileRecord
        path, record = Path(sys.argv[1]), json.loads(sys.argv[2])
        record = FileRecord(record[0], record[1], tuple(record[2]), *record[3:])
        array = PagedArray(path, record, stride_bytes=512, span_bytes=512)
        pages = record.shape[0] // 8
        ids = np.random.default_rng(1).permutation(pages)[:90_000] * 8 + 3
        out = np.empty((10_000, 512), np.uint8)
        before, sums = device_bytes_read(), 0
        for start in range(0, ids.size, 10_000):
            array.take(ids[start : start + 10_000], out)
            sums += int(out.sum())
        print(json.dumps([device_bytes_read() - before, ids.size * 4096, sums]))
        """,
        arguments=[
            tmp_path / "rows",
            json.dumps([record.path, record.dtype, record.shape, record.nbytes, record.sha256]),
        ],
        limit_bytes=LIMIT_BYTES,
    )
    read, wanted, total = json.loads(result.check().stdout)
    assert result.kills == 0
    assert wanted > LIMIT_BYTES  # so that pages had to go
    # Opening the file read its header, and a little ahead.
    assert 0.99 * wanted <= read <= 1.1 * wanted
    held = np.fromfile(tmp_path / "rows", np.uint8)[-FILE_BYTES:].reshape(-1, 512)
    ids = np.random.default_rng(1).permutation(FILE_BYTES // 4096)[:90_000] * 8 + 3
    assert total == int(held[ids].sum())
