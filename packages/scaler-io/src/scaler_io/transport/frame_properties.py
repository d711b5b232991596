"""Properties that ZeroMQ keeps for a received frame, as text: the connection's descriptor, the key of the peer.

On PyPy pyzmq does not offer them: there ZeroMQ itself is asked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import zmq

PropertyOf = Callable[[Any, str], str | None]
"""The property of a frame that has this name; None if the frame has no such property."""


def _offered(frame: Any, name: str) -> str | None:
    try:
        value: str = frame.get(name)
    except zmq.ZMQError:
        return None
    return value


def _asked() -> PropertyOf:
    ffi = import_module("cffi").FFI()
    ffi.cdef("const char *zmq_msg_gets(const void *message, const char *property);")
    # Through a library, symbols of those that it needs are found; pyzmq's own module needs ZeroMQ.
    library = ffi.dlopen(import_module("zmq.backend.cffi._cffi").__file__)

    def ask(frame: Any, name: str) -> str | None:
        value = library.zmq_msg_gets(frame.zmq_msg, name.encode())
        return ffi.string(value).decode() if value else None

    return ask


property_of: Final[PropertyOf] = _offered if sys.implementation.name == "cpython" else _asked()
