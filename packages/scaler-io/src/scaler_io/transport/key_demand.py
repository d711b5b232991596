"""Why connections of a peer without keys fail: whether the service demands keys."""

from __future__ import annotations

import contextlib
import time
from typing import Final

import zmq

from scaler_io.transport.curve import demands_keys
from scaler_io.transport.sockets import Context, make_stream
from scaler_protocol.addresses import Address

_GREETING_BEGIN: Final = b"\xff" + bytes(8) + b"\x7f\x03\x01"
"""Signature and version: the service answers with all of its greeting."""
_MECHANISM: Final = slice(12, 32)
"""Where a greeting names the mechanism."""
_ANSWER_SECONDS: Final = 2.0


class MechanismQuestion:
    """A connection that begins a handshake to read the service's greeting, which names its mechanism (ZMTP 3.1).

    A service that demands keys closes a connection without keys so soon that ZeroMQ mostly misses the reason.
    """

    def __init__(self, stream: zmq.Socket[bytes], address: Address) -> None:
        """`stream` is a socket of the type STREAM. Raises ZMQError, and closes it, if no connection can be begun."""
        self._stream, self._greeting, self._asked = stream, b"", time.monotonic()
        try:
            self._stream.setsockopt(zmq.CONNECT_ROUTING_ID, b"service")
            self._stream.connect(str(address))
            self._stream.send_multipart([b"service", _GREETING_BEGIN], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.close()
            raise

    def demands_keys(self) -> bool:
        """Whether the service has answered that it demands keys."""
        while len(self._greeting) < _MECHANISM.stop and self._stream.poll(0):
            self._greeting += self._stream.recv_multipart(zmq.NOBLOCK)[1]
        return self._greeting[_MECHANISM].rstrip(b"\0") == b"CURVE"

    @property
    def is_over(self) -> bool:
        """Whether there will be no answer."""
        return len(self._greeting) >= _MECHANISM.stop or time.monotonic() > self._asked + _ANSWER_SECONDS

    def close(self) -> None:
        """Close the connection."""
        self._stream.close(linger=0)


class KeyDemand:
    """Finds out whether a service demands keys, for a peer without keys whose connections fail."""

    def __init__(self, context: Context, address: Address) -> None:
        self._context, self._address = context, address
        self._question: MechanismQuestion | None = None

    def reason(self, ipv6: bool) -> str:
        """The error text if the service has said that it demands keys; "" otherwise, and then it is asked."""
        if self._address.path:
            return ""
        if self._question is not None:
            if self._question.demands_keys():
                return demands_keys(self._address)
            if not self._question.is_over:
                return ""
            self.close()
        with contextlib.suppress(OSError, zmq.ZMQError):  # too few descriptors: the next failure asks again
            self._question = MechanismQuestion(make_stream(self._context, ipv6), self._address)
        return ""

    def close(self) -> None:
        """Close the connection."""
        if self._question is not None:
            self._question.close()
            self._question = None
