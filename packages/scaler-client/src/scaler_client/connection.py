"""How a client reaches the scheduler: by ZeroMQ, or, inside a task, through the worker it runs in."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections.abc import Sequence

import cloudpickle

from scaler_client.io_thread import IoThread
from scaler_client.storage import PATIENCE_SECONDS, ClientStorage, StorageDoor
from scaler_client.task_context import TaskRuntime, Transport
from scaler_io.links import Uplink, UplinkEvent
from scaler_io.objects import ObjectConnection
from scaler_io.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation, new_session
from scaler_protocol.messages import Message


class DialedTransport:
    """A Dialer as the io thread's Transport."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    def turn(self, now: float) -> Sequence[UplinkEvent]:
        """Take in what has arrived."""
        return self._dialer.turn(now)

    def send(self, message: Message) -> None:
        """Write it with the next `flush`, or in the next epoch."""
        self._dialer.uplink.send(message)

    def flush(self, now: float) -> Sequence[UplinkEvent]:
        """Write what was sent."""
        return self._dialer.flush(now)

    def readable(self) -> bool:
        """Whether a turn would find something."""
        return self._dialer.readable()

    def wait(self, wake: int, seconds: float) -> bool:
        """Block, but not beyond what the link has to do."""
        due = self._dialer.uplink.due() - time.monotonic()
        return self._dialer.wait(wake, max(0.0, min(seconds, due)))

    def close(self) -> None:
        """Write what is left, and leave."""
        self._dialer.close()


def dial(address: str, identity: bytes, name: str, timeout_seconds: float, storage_address: str = "") -> IoThread:
    """A running IoThread that connects to a scheduler; raises AddressError.

    Object storage is where `storage_address` says, or else the scheduler.
    """
    parsed = Address.parse(address)
    if storage_address:
        Address.parse(storage_address)
    session, key = new_session(), new_identity()
    hello = Hello(
        Role.CLIENT,
        identity,
        new_incarnation(),
        session=session,
        name=name,
        host=socket.gethostname(),
        pid=os.getpid(),
        software="scaler-client 3.0.0",
        python=platform.python_version(),
        cloudpickle=cloudpickle.__version__,
    )

    def transport() -> Transport:
        return DialedTransport(Dialer(parsed, Uplink(hello, time.monotonic(), timeout_seconds=timeout_seconds)))

    def connect(at: Address) -> ObjectConnection:
        patience = min(timeout_seconds, PATIENCE_SECONDS)
        return ObjectConnection(
            at, session=session, key=key, timeout_seconds=patience, name=name, renewed=lambda: thread.mend()
        )

    door = StorageDoor(lambda: storage_address or thread.storage_address, connect)
    thread = IoThread(address, session, transport, ClientStorage(door, session))
    return _started(thread)


_nested: IoThread | None = None
_nested_lock = threading.Lock()


def nested(runtime: TaskRuntime) -> IoThread:
    """The IoThread that all clients inside the tasks of this process share."""
    global _nested
    with _nested_lock:
        if _nested is None or _nested.handoff.closed:
            # No task id may be used twice: after a failure, or in a fork, there is another session.
            session = runtime.session if _nested is None else new_session()
            storage = ClientStorage(runtime.storage, session)
            _nested = _started(IoThread("this worker's scheduler", session, runtime.connect, storage, runtime))
        return _nested


def _started(thread: IoThread) -> IoThread:
    thread.start()
    return thread
