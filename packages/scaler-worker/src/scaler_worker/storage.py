"""Object storage as a worker uses it."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from scaler_client.storage import PATIENCE_SECONDS, StorageDoor
from scaler_io.objects import ObjectConnection
from scaler_protocol.addresses import Address
from scaler_protocol.buffers import Buffer, BufferedPickle, Payload
from scaler_protocol.handshake import Role
from scaler_protocol.ids import new_session
from scaler_protocol.objects import Reference
from scaler_worker.channel import result_name

CACHE_BYTES: Final = 64 * 1024 * 1024


class WorkerStorage:
    """What WorkerCore and the client inside its tasks share: one connection, opened when it is first needed.

    It is an agent's, which may write results in any session, and it owns `session`: what tasks here submit and put
    ends with this process. Of what several runs may need the latest is kept, up to `limit` bytes.
    """

    def __init__(self, address: Callable[[], str], secret: bytes, name: str, limit: int = CACHE_BYTES) -> None:
        self.session = new_session()
        self._secret, self._pid = secret, os.getpid()
        self.door = StorageDoor(address, self._connect)
        self._name = name
        self._limit = limit
        self._kept: OrderedDict[bytes, Buffer] = OrderedDict()
        self._size = 0

    def _connect(self, address: Address) -> ObjectConnection:
        return ObjectConnection(
            address, session=self.session, role=Role.AGENT, timeout_seconds=PATIENCE_SECONDS, name=self._name
        )

    @property
    def named(self) -> bool:
        """Whether there is a server."""
        return self.door.named

    def get(self, reference: bytes) -> Buffer:
        """The object; raises ScalerError."""
        return self.door.connection().get(Reference.unpack(reference))

    def get_shared(self, reference: bytes) -> Buffer:
        """An object that other runs may need, too; raises ScalerError."""
        payload = self._kept.pop(reference, None)
        if payload is None:
            payload = self.get(reference)
            if len(payload) > self._limit:
                return payload
            self._size += len(payload)
        self._kept[reference] = payload
        while self._size > self._limit:
            _, oldest = self._kept.popitem(last=False)
            self._size -= len(oldest)
        return payload

    def put(self, payload: Payload, session: int, run: int) -> bytes:
        """Store the outcome of a run, for a session; returns its packed reference. Raises ScalerError."""
        name = result_name(self._secret, run, self._pid)
        buffers = payload.pieces if isinstance(payload, BufferedPickle) else payload
        return self.door.connection().put(buffers, session=session, name=name).pack()
