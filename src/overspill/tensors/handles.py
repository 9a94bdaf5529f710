"""A disk-backed tensor as a few hundred bytes, for any pickler: where its file is, and how it lies.

Bottleneck: none; opening costs two statx calls and, for the first view of a file in a process, one
mmap. No byte of the data is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from overspill.errors import StaleFileError, UnsupportedTensorError
from overspill.linux.identity import FileIdentity, host_identity, is_this_boot
from overspill.linux.mapping import Mapping, map_file
from overspill.storage.sent_paths import sent_from
from overspill.storage.workspace import adopt_run_of
from overspill.tensors.backing import file_behind
from overspill.tensors.dtypes import dtype_name, torch_dtype
from overspill.tensors.layouts import tensor_over
from overspill.tensors.mapping import expect_file, map_shared, mapping_storage, remember_mapping
from overspill.tensors.registry import MAPPED, MappedFile


@dataclass(frozen=True, kw_only=True)
class FileSpan:
    """A storage as a span of a mapped file.

    Attributes:
        path: The file, absolute.
        identity: Which file it is.
        start: Where the storage begins in the file, in bytes.
        nbytes: The storage's length.
        shared: Whether writes reach the file.
        host: Machine and boot on which the path and the identity mean something.
    """

    path: str
    identity: FileIdentity
    start: int
    nbytes: int
    shared: bool
    host: str

    def __reduce__(self) -> tuple[object, ...]:
        held = self.identity
        numbers = (held.device, held.inode, held.birth_time_ns, held.nbytes)
        rest = (self.start, self.nbytes, self.shared, self.host)
        return _span, (self.path, numbers, *rest)

    def open(self) -> torch.UntypedStorage:
        """Map the file, or find it mapped, and give the storage.

        Raises:
            StaleFileError: The file or its run is gone, was replaced, or has another size.
            MappingError: The system refused to map it.
        """
        remedy = "send the data itself to another machine, or after a restart"
        with sent_from(self.host, self.path, "handle", remedy=remedy):
            adopt_run_of(self.path)
            return self._here()._opened()

    def _here(self) -> FileSpan:
        """The span with the identity that its file has on this machine.

        Raises:
            StaleFileError: The file is gone, was replaced, or has another size.
        """
        if is_this_boot(self.host):
            expect_file(self.path, nbytes=self.identity.nbytes, identity=self.identity)
            return self
        found = expect_file(self.path, nbytes=self.identity.nbytes, identity=None)
        if not found.matches_elsewhere(self.identity):
            raise StaleFileError(
                f"{self.path} is another file ({found}) than the one that was meant "
                f"({self.identity})",
                path=self.path,
                remedy="begin again with whole files, and leave them alone while in use",
            )
        return replace(self, identity=found)

    def _opened(self) -> torch.UntypedStorage:
        if not self.shared:
            return mapping_storage(self._mapping(), self.start, self.nbytes)
        whole = map_shared(self.path, nbytes=self.identity.nbytes, identity=self.identity)
        if self.start == 0 and self.nbytes == whole.nbytes():
            return whole
        # A span of it, as numpy round trips make: over the same mapping, which it keeps alive.
        held = tensor_over(whole, torch.uint8, (whole.nbytes(),)).numpy()
        return torch.from_numpy(held[self.start : self.start + self.nbytes]).untyped_storage()

    def _mapping(self) -> Mapping:
        known = MAPPED.of(self.identity, shared=False)
        if isinstance(known, Mapping):
            return known
        mapping = map_file(self.path, nbytes=self.identity.nbytes, identity=self.identity)
        remember_mapping(mapping)
        return mapping


@dataclass(frozen=True, kw_only=True)
class TensorHandle:
    """A disk-backed tensor that travels through any pickler, by path.

    It holds no memory and no descriptor. Its file must still be there when it is opened: a run's
    files stay while a process of the run lives.

    Attributes:
        span: The storage's place in its file.
        dtype: The dtype's name.
        shape: The shape.
        stride: The strides, in elements.
        offset: Where the first element lies in the storage, in elements.
        requires_grad: Whether the tensor is a leaf that requires grad.
        conj: Whether it is a conjugate view.
        neg: Whether it is a negative view.
        parameter: Whether it is a Parameter.
    """

    span: FileSpan
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    requires_grad: bool = False
    conj: bool = False
    neg: bool = False
    parameter: bool = False

    def __reduce__(self) -> tuple[object, ...]:
        return opened_handle, (self.span, *_layout(self))

    def __repr__(self) -> str:
        return f"TensorHandle({self.dtype}, {self.shape}, {self.span.path!r})"

    def open(self) -> torch.Tensor:
        """Give a tensor over the file, with the layout that the sender's had.

        Several handles of one file open over one mapping. A shared file's writes are seen by
        every process; those to a dataset's array stay in this one. Thread-safe; threads that open
        one file at the same moment may get a mapping each. A handle may be opened in any process
        of this machine, as often as wanted; on another one where the same file stands at the path,
        on a file system that both share and that tells when a file was made.

        Returns:
            The tensor.

        Raises:
            StaleFileError: The file or its run is gone, was replaced, or has another size. On
                another machine the message names both.
            MappingError: The system refused to map it.
            UnsupportedTensorError: This torch does not know the dtype.
        """
        dtype = torch_dtype(self.dtype)
        storage = self.span.open()
        tensor = tensor_over(storage, dtype, self.shape, stride=self.stride, offset=self.offset)
        if self.conj:
            tensor = tensor.conj()
        if self.neg:
            tensor = torch._neg_view(tensor)
        if self.parameter:
            return torch.nn.Parameter(tensor, requires_grad=self.requires_grad)
        return tensor.requires_grad_() if self.requires_grad else tensor


def handle(tensor: torch.Tensor) -> TensorHandle:
    """Describe a disk-backed tensor in a few hundred bytes, for any pickler.

    Reads no page of the data. Thread-safe.

    Args:
        tensor: A disk-backed tensor, a view of one, or a Parameter over one.

    Returns:
        The handle; ``open()`` it in the receiver.

    Raises:
        UnsupportedTensorError: It is not disk-backed, is a subclass of Tensor, or requires grad
            without being a leaf.
    """
    record = file_behind(tensor) if isinstance(tensor, torch.Tensor) else None
    if record is None:
        raise UnsupportedTensorError(
            "only a disk-backed tensor has a handle",
            remedy="spill it first: overspill.spill_tensor_to_disk(t, required=True)",
        )
    return handle_over(tensor, record)


def handle_over(tensor: torch.Tensor, record: MappedFile) -> TensorHandle:
    """The handle of a tensor whose file is known already; see `handle` for the errors."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsupportedTensorError(
            f"a {type(tensor).__name__} has no handle",
            remedy="take the handle of tensor.as_subclass(torch.Tensor)",
        )
    if tensor.requires_grad and not tensor.is_leaf:
        raise UnsupportedTensorError(
            "a tensor that requires grad and is no leaf cannot cross processes",
            remedy="detach() it first",
        )
    return TensorHandle(
        span=span_of(tensor.untyped_storage(), record),
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        offset=int(tensor.storage_offset()),
        requires_grad=tensor.requires_grad,
        conj=tensor.is_conj(),
        neg=tensor.is_neg(),
        parameter=isinstance(tensor, torch.nn.Parameter),
    )


def span_of(storage: torch.UntypedStorage, record: MappedFile) -> FileSpan:
    """A storage's span of its file.

    Raises:
        StaleFileError: A user's own mapping whose file is no longer under its name.
    """
    if record.identity.nbytes < record.nbytes:
        raise StaleFileError(
            f"{record.path} is no longer the file that is mapped here",
            path=record.path,
            remedy="keep the file under its name while its tensors travel",
        )
    return FileSpan(
        path=record.path,
        identity=record.identity,
        start=storage.data_ptr() - record.address,
        nbytes=storage.nbytes(),
        shared=record.shared,
        host=host_identity(),
    )


def _layout(held: TensorHandle) -> tuple[object, ...]:
    flags = (held.requires_grad, held.conj, held.neg, held.parameter)
    return held.dtype, held.shape, held.stride, held.offset, flags


# Positional and short: what travels is under 1 KiB, names of fields included.
def _span(
    path: str,
    identity: tuple[int, int, int | None, int],
    start: int,
    nbytes: int,
    shared: bool,
    host: str,
) -> FileSpan:
    return FileSpan(
        path=path,
        identity=FileIdentity(*identity),
        start=start,
        nbytes=nbytes,
        shared=shared,
        host=host,
    )


def opened_handle(
    span: FileSpan,
    dtype: str,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    flags: tuple[bool, bool, bool, bool],
) -> TensorHandle:
    """Rebuild a handle from the fields that its ``__reduce__`` sends."""
    requires_grad, conj, neg, parameter = flags
    return TensorHandle(
        span=span,
        dtype=dtype,
        shape=shape,
        stride=stride,
        offset=offset,
        requires_grad=requires_grad,
        conj=conj,
        neg=neg,
        parameter=parameter,
    )
