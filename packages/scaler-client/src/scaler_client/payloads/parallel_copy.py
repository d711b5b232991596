"""Big bytes copied by several threads at once, in steps for which the kernel is asked for memory beforehand.

Most of the time goes into new memory, a page fault for every 4 KiB. Asked for a step's pages at once Linux gives them
in one go, and they are still in the cache when the bytes come. 20 MB out of shared memory take 11.1 ms by one thread,
7.9 in such steps, and 4.4 by two threads (*measured* on 2 cores; huge pages are quicker still where memory was used
before, and much slower on virtual machines where it was not). Of a mapped object only what is being copied is in this
process's memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from scaler_protocol.buffers import Buffer

Work = Callable[[int, int], object]
"""Does the bytes from a start to a stop; releases the GIL."""
PART_BYTES: Final = 2 * 1024 * 1024
"""A thread takes most of a tenth of a millisecond to start, and this much nearly a whole one to copy."""
_THREADS_LIMIT: Final = 4
_STEP_BYTES: Final = 1024 * 1024
"""What still lies in a core's own cache when the kernel has cleared it."""
_HELD_BYTES: Final = 4 * 1024 * 1024
"""What a thread keeps mapped of a stored object; to give up less at a time takes time (*measured*: 10 % for 1 MiB)."""
_MADV_POPULATE_WRITE: Final = 23
"""Of Linux 5.14 and later (madvise(2)); others say that they do not know it, and their pages come one by one."""
_MADV_DONTNEED: Final = 4


class _PyBuffer(ctypes.Structure):
    """Py_buffer of Python's buffer protocol (docs.python.org, C API)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


# By index, for functions of our own: what others set on the attributes of `pythonapi` holds for everybody.
_new_bytes = ctypes.pythonapi["PyBytes_FromStringAndSize"]
_new_bytes.argtypes, _new_bytes.restype = (ctypes.c_char_p, ctypes.c_ssize_t), ctypes.py_object
_get_buffer = ctypes.pythonapi["PyObject_GetBuffer"]
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi["PyBuffer_Release"]
_release_buffer.argtypes, _release_buffer.restype = (ctypes.POINTER(_PyBuffer),), None

_madvise: Any = ctypes.CDLL(None).madvise if sys.platform == "linux" else None
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def copied(view: Buffer) -> bytes:
    """The bytes of a contiguous buffer, as `bytes(view)`. Raises MemoryError."""
    size = memoryview(view).nbytes
    if sys.implementation.name != "cpython":
        return bytes(view)
    # Bytes without content may be written to before anybody else sees them.
    made: bytes = _new_bytes(None, size)
    run_parallel(partial(_copy, made, view, _is_of_a_file(view)), size, PART_BYTES)
    return made


def run_parallel(work: Work, size: int, least: int) -> None:
    """`work(start, stop)` for parts of `size`, none smaller than `least` if there are several; raises what it raises.

    Its threads have ended when it returns.
    """
    count = max(1, min(size // least, os.cpu_count() or 1, _THREADS_LIMIT))
    step = -(-size // count)
    if count == 1:
        work(0, size)
        return
    with ThreadPoolExecutor(count - 1) as pool:
        ends = [_begun(pool, work, start, min(start + step, size)) for start in range(step, size, step)]
        work(0, step)
        for end in ends:
            end()


def _begun(pool: ThreadPoolExecutor, work: Work, start: int, stop: int) -> Callable[[], object]:
    """Start a part; returns the function that waits for its end."""
    try:
        return pool.submit(work, start, stop).result
    except RuntimeError:  # during interpreter shutdown no thread can be started
        return lambda: work(start, stop)


def _is_of_a_file(view: Buffer) -> bool:
    """Whether pages can be given up and read again: those of a read-only mapping of a file."""
    mapping = memoryview(view).obj
    return isinstance(mapping, mmap.mmap) and memoryview(mapping).readonly


def _copy(made: bytes, view: Buffer, is_of_a_file: bool, start: int, stop: int) -> None:
    """Copy one part; releases the GIL."""
    with _address(made) as to, _address(view) as source:
        for begin in range(start, stop, _HELD_BYTES):
            end = min(begin + _HELD_BYTES, stop)
            for at in range(begin, end, _STEP_BYTES):
                size = min(_STEP_BYTES, end - at)
                _advise(to + at, size, _MADV_POPULATE_WRITE)
                ctypes.memmove(to + at, source + at, size)
            if is_of_a_file:
                _advise(source + begin, end - begin, _MADV_DONTNEED)


def _advise(address: int, size: int, advice: int) -> None:
    """Advise the kernel on whole pages; errors are ignored, as advice only affects speed."""
    if _madvise is not None:
        page = address & -mmap.PAGESIZE
        _madvise(page, address + size - page, advice)


@contextmanager
def _address(buffer: Buffer) -> Iterator[int]:
    """The address of a buffer, which cannot move inside the context."""
    found = _PyBuffer()
    _get_buffer(buffer, found, 0)  # raises what the buffer says
    try:
        yield found.buf
    finally:
        _release_buffer(found)
