"""Arrays that need not be sent: numpy's mapping of a .npy file is read from that file."""

from __future__ import annotations

import numpy as np

from overspill.build.readers.npy import read_npy_header
from overspill.build.readers.source import SourceFile
from overspill.errors import InputError
from overspill.linux.mapped_files import MappedPlace, shared_file_at


def npy_behind(value: object) -> str | None:
    """The .npy file of which a memory-mapped array is the whole content, in the file's own order.

    Certain, or None: the mapping is shared, it begins where the file's data begins, and the file
    that lies at its path now is the one that was mapped.
    """
    if type(value) is not np.memmap or value.filename is None or value.size == 0:
        return None
    place = shared_file_at(value.__array_interface__["data"][0])
    if place is None:
        return None
    try:
        file = read_npy_header(SourceFile.check(str(value.filename)))
    except InputError:  # raw, or gone: the mapping still holds it, and it is sent
        return None
    identity = file.source.identity
    same = place == MappedPlace(identity.device, identity.inode, file.offset)
    ordered = value.flags.f_contiguous if file.fortran else value.flags.c_contiguous
    alike = (value.shape, value.dtype) == (file.shape, file.dtype)
    return file.path if same and ordered and alike else None
