"""How a client reaches the scheduler: by ZeroMQ, or, inside a task, through the worker it runs in."""

from __future__ import annotations

import platform
import socket
import time
from dataclasses import replace
from pathlib import Path

import cloudpickle

from scaler_client.objects.store import PATIENCE_SECONDS, ClientStorage, StorageDoor
from scaler_client.runtime.io_thread import IoThread
from scaler_client.runtime.task_ids import TaskIds
from scaler_client.task_context import TaskRuntime, Transport, is_fork
from scaler_io.links.uplink import Uplink
from scaler_io.objects.connection import ObjectConnection
from scaler_io.reentrant_lock import ReentrantLock
from scaler_io.security.keyring import CLIENT_KEYS, Credentials
from scaler_io.transport.own_keys import credentials_for, local_socket
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ClientForkedError, SessionInUseError
from scaler_protocol.handshake import RESULT_CREDIT, Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation, new_session, session_key
from scaler_protocol.lazy_dataclass import dataclass

RETRY_SECONDS = 0.2
CONNECT_GRACE_SECONDS = 5.0
"""Added to the timeout, so that the connecting thread reports the error first."""


SESSION_SECONDS = 5.0
"""How long to wait for another client of the named session that may have ended just now."""


@dataclass(frozen=True, slots=True)
class SessionName:
    """A session that outlives its client; `secret` proves it, instead of the secret key if there is one."""

    name: str
    secret: bytes = b""

    @classmethod
    def of(cls, name: str, secret: str | bytes | None) -> SessionName:
        """From what a user gives."""
        return cls(name, secret.encode() if isinstance(secret, str) else secret or b"")

    def key(self, credentials: Credentials | None) -> bytes:
        """The hash that proves the session to services."""
        return session_key(self.name, self.secret or (credentials.secret if credentials is not None else b""))


def dial(
    address: str,
    identity: bytes,
    name: str,
    timeout_seconds: float,
    storage_address: str = "",
    credentials: Credentials | None = None,
    named: SessionName | None = None,
    local: Path | None = None,
) -> IoThread:
    """A running IoThread that connects to a scheduler; raises AddressError.

    Object storage is at `storage_address` if given, else where the scheduler says. At `local` the scheduler may also
    listen to programs of this user.
    """
    parsed = Address.parse_peer(address)
    if storage_address:
        Address.parse_peer(storage_address)
    session, session_name = new_session(), named.name if named is not None else ""
    key = named.key(credentials) if named is not None else new_identity()
    hello = _hello(identity, name, session)
    if session_name:
        hello = replace(hello, session_name=session_name, session_key=key, result_credit=0)

    def transport() -> Transport:
        uplink = Uplink(hello, time.monotonic(), timeout_seconds=timeout_seconds)
        return Dialer(parsed, uplink, credentials=credentials, local=local)

    def connect(at: Address) -> ObjectConnection:
        patience = min(timeout_seconds, PATIENCE_SECONDS)
        return ObjectConnection(
            at,
            session=thread.storage.session,
            key=key,
            timeout_seconds=patience,
            name=name,
            renewed=lambda: thread.restore_objects(),
            credentials=credentials,
            token=lambda: thread.storage_token,
        )

    door = StorageDoor(lambda: storage_address or thread.storage_address, connect)
    storage = ClientStorage(door, session, lambda origin: thread.remake(origin), outlives=bool(session_name))
    thread = IoThread(address, TaskIds(session), transport, storage, named=bool(session_name))
    return _started(thread)


def _hello(identity: bytes, name: str, session: int) -> Hello:
    return Hello(
        Role.CLIENT,
        identity,
        new_incarnation(),
        session=session,
        name=name,
        host=socket.gethostname(),
        python=platform.python_version(),
        cloudpickle=cloudpickle.__version__,
        result_credit=RESULT_CREDIT,
    )


_SHARED = "all tasks of a worker share them, and this worker will end: run this task again"
_USED_UP = "its tasks have used up the task ids of its session"

_nested: IoThread | None = None
_nested_lock = ReentrantLock()


def nested(runtime: TaskRuntime) -> IoThread:
    """The IoThread that all clients inside the tasks of this process share; one that has failed is replaced."""
    global _nested
    with _nested_lock:
        failed = _nested
        if failed is not None and not failed.mailbox.closed:
            return failed
        if failed is None:
            ids = TaskIds(runtime.session, _SHARED, lambda: runtime.retire(_USED_UP))
        else:
            ids = failed.ids  # the session is the same, and no id may be used twice
            failed.stop()  # only one thread may use the channel
        storage = ClientStorage(runtime.storage, runtime.session, lambda origin: thread.remake(origin))
        thread = IoThread("this worker's agent", ids, runtime.connect, storage, runtime)
        _nested = _started(thread)
        return _nested


def connect(
    inside: TaskRuntime | None,
    address: str | None,
    identity: bytes,
    name: str,
    timeout_seconds: float,
    storage_address: str | None,
    security: tuple[Path | None, bool],
    named: SessionName | None = None,
) -> tuple[IoThread, TaskRuntime | None]:
    """The thread for a client, connected, and `inside` where it is the one that the tasks of this process share.

    `security` is the directory of keys, if one is given, and whether to use none.
    Raises ValueError or ClientForkedError where an address is needed, AddressError, KeyFileError,
    HandshakeRefusedError, SchedulerLostError.
    """
    if named is not None and inside is not None:
        raise ValueError(f"session={named.name!r} inside a task: its client belongs to the session of the task")
    if address is None:
        if inside is not None:
            return nested(inside), inside
        if is_fork():
            raise ClientForkedError(
                "this process was forked by a task and has no connection to the task's worker:"
                " pass the address of the scheduler to Client"
            )
        raise ValueError("No scheduler address provided, and not running inside a worker context")
    parsed = Address.parse_peer(address)
    credentials, local = credentials_for(parsed, *security, CLIENT_KEYS), local_socket(parsed, *security)
    until = time.monotonic() + SESSION_SECONDS
    while True:
        io = dial(address, identity, name, float(timeout_seconds), storage_address or "", credentials, named, local)
        try:
            io.wait_connected(timeout_seconds + CONNECT_GRACE_SECONDS)
            break
        except SessionInUseError:
            io.stop()
            if time.monotonic() >= until:
                raise
            time.sleep(RETRY_SECONDS)
        except BaseException:
            io.stop()
            raise
    if inside is not None and io.scheduler == inside.scheduler:
        # The task's own cluster, under any address: a task that waits must not occupy its worker's slot.
        io.stop()
        return nested(inside), inside
    return io, None


def _started(thread: IoThread) -> IoThread:
    thread.start()
    return thread
