"""Mappings of segment files that a broker on this machine passed over, in place of their bytes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from functools import cache
from typing import Final

from spark_logbus.wire.passed_file import PassedFile

_MADV_POPULATE_READ: Final = 22  # Linux 5.14
# Each mapping holds a descriptor of this process, and the disk space of what retention deletes.
_MOST_MAPPINGS: Final = 64

_mappings: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def mapped(file: PassedFile, position: int, length: int) -> memoryview:
    """``length`` bytes of the file from ``position`` on, uncopied; the mapping goes with the last
    view, and may outlive ``file``. Not thread-safe.

    Raises OSError when that cannot be: the file is too short, its disk fails, its file system
    maps nothing, or this process has as many mappings as it may. All pages are read here. That
    one of them is gone later, because somebody cut the file or because its disk fails when it
    is read once more, would end the process with SIGBUS; a broker cuts what it gave out only
    when it starts again and finds it damaged, or after a failed flush (``flush.policy=os``).
    """
    start = position - position % mmap.ALLOCATIONGRANULARITY
    if len(_mappings) >= _MOST_MAPPINGS:
        raise OSError(errno.EMFILE, f"{_MOST_MAPPINGS} mappings are in use")
    mapping = _mapping(file.fileno(), start, position + length - start)
    _mappings.add(mapping)
    _read_in(mapping)
    return memoryview(mapping)[position - start :]


def _mapping(descriptor: int, start: int, length: int) -> mmap.mmap:
    try:
        return mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ, offset=start)
    except (ValueError, OverflowError) as error:  # how the module says that the file is shorter
        raise OSError(errno.EIO, f"the file does not hold {length} bytes at {start}") from error


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _read_in(mapping: mmap.mmap) -> None:
    """Have all pages read from the disk now, so that a fault of the disk is an error here.

    Not by the mapping's own ``madvise``, under which all threads of the process would wait for the
    disk: it keeps the interpreter's lock.
    """
    import pyarrow as pa  # see memory

    buffer = pa.py_buffer(mapping)
    address, size = ctypes.c_void_p(buffer.address), ctypes.c_size_t(buffer.size)
    if _libc().madvise(address, size, _MADV_POPULATE_READ) != 0:
        code = ctypes.get_errno()
        if code != errno.EINVAL:  # a kernel that cannot; its pages are read when touched
            raise OSError(code, os.strerror(code))
