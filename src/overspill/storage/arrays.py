"""Array files: one safetensors file with one tensor named "data", mapped page-aligned.

The header is padded with spaces so that the payload starts on a 4096-byte boundary; there is no
padding at the end, which safetensors readers refuse. Bottleneck: the device; an array is written
once, in order, hashed as it goes, and never held in memory whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from overspill.errors import DiskRefusedError, FormatError, StaleFileError, sentence_of
from overspill.linux.blocks import reserve_blocks, write_all
from overspill.linux.identity import identify_file
from overspill.linux.mapping import Mapping, map_file
from overspill.storage.records import (
    NAMES_BY_CODE,
    STORED_DTYPES,
    FileRecord,
    numpy_view_dtype,
    payload_bytes,
)
from overspill.storage.write_behind import WriteBehind

TENSOR_NAME = "data"
_PAGE = 4096
_LONGEST_HEADER = 1 << 20
_DAMAGED = "the file was cut or changed: copy it anew, or build the dataset again"
_HASHED_BESIDE_BYTES = 1 << 20


@dataclass(frozen=True)
class ArrayInfo:
    """What the header of an array file says.

    Attributes:
        dtype: A name of `STORED_DTYPES`.
        shape: The array's shape.
        payload_offset: Where the payload starts, a multiple of 4096.
        nbytes: Size of the whole file.
    """

    dtype: str
    shape: tuple[int, ...]
    payload_offset: int
    nbytes: int


class ArrayWriter:
    """Writes an array file row by row; the file appears under its name only when it is complete.

    Every block is reserved before the first write; dirty pages and page cache stay bounded (two
    windows). The header is written last. On an error, the file is removed. One thread at a time.

    Args:
        path: Where the file goes; its directory exists.
        dtype: A name of `STORED_DTYPES`.
        shape: The full shape, or the largest.
        record_path: The path as the manifest names it; default is the file's name.
        at_most: Fewer rows than the shape has may come; the room of the others is given back.
        window_bytes: Size of a window of dirty pages; None: 8 MiB.

    Raises:
        DiskRefusedError: The disk could not reserve, write or sync the bytes.
        FormatError: No array file can hold this dtype or shape.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dtype: str,
        shape: tuple[int, ...],
        record_path: str | None = None,
        at_most: bool = False,
        window_bytes: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.partial_path = self._written = partial_path(self.path)
        self._dtype, self._shape = dtype, tuple(shape)
        self._record_path = record_path or self.path.name
        self.view_dtype = numpy_view_dtype(dtype)
        self._at_most, self._window_bytes = at_most, window_bytes
        self._start = len(encode_header(dtype, self._shape))
        self._nbytes = self._start + payload_bytes(dtype, self._shape)
        self._hash = hashlib.sha256()
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="overspill-hash")
        self._fd = -1
        self._result: FileRecord | None = None

    def __enter__(self) -> ArrayWriter:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._fd = os.open(self.partial_path, flags, 0o644)
        except OSError as error:
            raise refused_array(error, self.path) from error
        try:
            reserve_blocks(self._fd, self._nbytes, path=str(self.path))
            self._out = WriteBehind(
                self._fd,
                path=str(self.path),
                offset=self._start,
                window_bytes=self._window_bytes,
            )
        except BaseException:
            self._abandon()
            raise
        return self

    @property
    def published(self) -> bool:
        """Whether the file has its name."""
        return self._result is not None

    @property
    def result(self) -> FileRecord:
        """What was written, once the `with` block has been left (FormatError before, or undone)."""
        if self._result is None:
            raise FormatError(
                f"{self.path} was not finished", path=str(self.path), remedy="write it again"
            )
        return self._result

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append elements in C order, hashing them; returns once they are written.

        Args:
            rows: Contiguous, of the writer's dtype (unsigned bits where numpy lacks the dtype).

        Raises:
            DiskRefusedError: The disk refused.
            ValueError: Wrong dtype, or more elements than the shape holds.
        """
        if rows.dtype != self.view_dtype:
            raise ValueError(f"{self.path}: {rows.dtype} rows for a {self.view_dtype} array")
        if self._out.offset + rows.nbytes > self._nbytes:
            raise ValueError(f"{self.path}: more rows than the shape {self._shape} holds")
        data = rows.reshape(-1).view(np.uint8).data
        if len(data) < _HASHED_BESIDE_BYTES:
            self._hash.update(data)
            self._out.append(data)
            return
        # Both release the interpreter's lock, and neither changes the data.
        hashing = self._hasher.submit(self._hash.update, data)
        try:
            self._out.append(data)
        finally:
            hashing.result()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hasher.shutdown()
        if kind is not None:
            self._abandon()
            return
        try:
            self._publish()
        except BaseException:
            self._abandon()
            raise

    def _publish(self) -> None:
        shape = self._written_shape()
        header = encode_header(self._dtype, shape)
        self._out.drain()
        write_all(self._fd, header, 0, path=str(self.path))
        try:
            os.ftruncate(self._fd, self._out.offset)
            os.fsync(self._fd)
            fd, self._fd = self._fd, -1
            os.close(fd)
            self._written = self.partial_path.rename(self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise refused_array(error, self.path) from error
        self._result = FileRecord(
            self._record_path, self._dtype, shape, self._out.offset, self._hash.hexdigest()
        )

    def _written_shape(self) -> tuple[int, ...]:
        missing = self._nbytes - self._out.offset
        if not missing:
            return self._shape
        row_bytes = payload_bytes(self._dtype, (1, *self._shape[1:]))
        shape = (self._shape[0] - missing // row_bytes, *self._shape[1:])
        # A header of another length would have moved the payload: only with hundreds of axes.
        moved = len(encode_header(self._dtype, shape)) != self._start
        if not self._at_most or missing % row_bytes or moved:
            raise ValueError(
                f"{self.path}: {self._out.offset} of {self._nbytes} bytes were written"
            )
        return shape

    def _abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._written.unlink(missing_ok=True)


def partial_path(path: Path) -> Path:
    """The name that an array file has until it is complete."""
    return path.with_name(path.name + ".partial")


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable; OSError as the system gives it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_regular(path: Path) -> int:
    """A descriptor of a regular file, open for reading; OSError for whatever else stands there."""
    # O_NONBLOCK: the open of a FIFO would wait for a writer; regular files do not mind.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(number, "it is not a regular file")
    except BaseException:
        os.close(fd)
        raise
    return fd


def encode_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The bytes before the payload: length, JSON, and spaces up to a page boundary."""
    code = STORED_DTYPES[dtype][0]
    entry = {
        "dtype": code,
        "shape": list(shape),
        "data_offsets": [0, payload_bytes(dtype, shape)],
    }
    text = json.dumps({TENSOR_NAME: entry}, separators=(",", ":"), allow_nan=False).encode()
    padded = -(-(8 + len(text)) // _PAGE) * _PAGE - 8
    return padded.to_bytes(8, "little") + text.ljust(padded)


def read_array_info(path: str | Path) -> ArrayInfo:
    """Read and check the header of an array file; no payload page is touched.

    Raises:
        StaleFileError: The file is gone, cannot be read, or has another size than its header says.
        FormatError: The header is damaged or not of this format.
    """
    path = Path(path)
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            # The length is data from a file: check it before reading that many bytes.
            if size < 8 or length > min(size - 8, _LONGEST_HEADER) or (8 + length) % _PAGE:
                raise FormatError(
                    f"{path} is not an array file: its header is damaged",
                    path=str(path),
                    remedy=_DAMAGED,
                )
            text = file.read(length)
    except OSError as error:
        raise StaleFileError(
            f"cannot read array file {path}: {error.strerror}",
            path=str(path),
            errno=error.errno,
            remedy="check that it is there and may be read, or build the dataset again",
        ) from error
    info = _decode_header(text, path)
    if size != info.nbytes:
        raise StaleFileError(
            f"{path} has {size} bytes where its header says {info.nbytes}",
            path=str(path),
            needed_bytes=info.nbytes,
            available_bytes=size,
            remedy="the file was cut or changed: build the dataset again",
        )
    return info


def _decode_header(text: bytes, path: Path) -> ArrayInfo:
    try:
        entries = json.loads(text)
        entry = entries[TENSOR_NAME]
        dtype = NAMES_BY_CODE[entry["dtype"]]
        shape = tuple(entry["shape"])
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"shape {shape}")
        nbytes = payload_bytes(dtype, shape)
        if entry["data_offsets"] != [0, nbytes] or set(entries) - {TENSOR_NAME, "__metadata__"}:
            raise ValueError("offsets do not match the shape")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{path} is not an Overspill array file: {sentence_of(error)}",
            path=str(path),
            remedy=_DAMAGED,
        ) from error
    return ArrayInfo(dtype, shape, 8 + len(text), 8 + len(text) + nbytes)


def map_array(
    path: str | Path, info: ArrayInfo | FileRecord | None = None
) -> tuple[Mapping, npt.NDArray[Any]]:
    """Map an array file privately: nothing is read, a write stays in this process.

    Args:
        path: The array file.
        info: What is known of it; a file that says otherwise is refused.

    Returns:
        The mapping of the whole file, and a writable view of the payload that keeps it alive. A
        dtype numpy lacks (bfloat16, float8) is viewed as unsigned bits.

    Raises:
        StaleFileError: The file is gone, or is not the one that `info` describes.
        FormatError: The header is damaged.
        MappingError: The system refused the mapping.
    """
    found = read_array_info(path)
    if info is not None and (found.dtype, found.shape, found.nbytes) != (
        info.dtype,
        info.shape,
        info.nbytes,
    ):
        raise StaleFileError(
            f"{path} holds {found.dtype} {found.shape} where {info.dtype} {info.shape} was "
            f"recorded",
            path=str(path),
            remedy="open the dataset again",
        )
    mapping = map_file(path, nbytes=found.nbytes)
    payload = np.asarray(mapping)[found.payload_offset :]
    return mapping, payload.view(numpy_view_dtype(found.dtype)).reshape(found.shape)


def check_unchanged(mapping: Mapping) -> None:
    """Refuse to go on over an array file that was cut, replaced or removed: one system call.

    Raises:
        StaleFileError: Its path does not lead to the file that was mapped any more.
    """
    found = identify_file(mapping.path)
    if found == mapping.identity:
        return
    resized = found.nbytes != mapping.nbytes
    how = f"has {found.nbytes} bytes where it had {mapping.nbytes}" if resized else "was replaced"
    raise StaleFileError(
        f"an array file changed while its dataset was open: it {how}",
        path=mapping.path,
        needed_bytes=mapping.nbytes if resized else None,
        available_bytes=found.nbytes if resized else None,
        remedy="open the dataset again; build it again if its files are damaged",
    )


def refused_array(error: OSError, path: Path) -> DiskRefusedError:
    """The error of an array file that the disk refuses."""
    return DiskRefusedError(
        f"the disk refused {path}: {error.strerror}",
        path=str(path),
        errno=error.errno,
        remedy="free some space or choose another directory",
    )
