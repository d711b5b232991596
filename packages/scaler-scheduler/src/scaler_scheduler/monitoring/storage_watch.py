"""The status of the object storage server, for monitors."""

from __future__ import annotations

import time
from dataclasses import replace

from scaler_io.security.keyring import Credentials
from scaler_io.service.operator_link import OperatorLink
from scaler_io.transport.sockets import Context
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.monitoring import NeedStorageStatus, StorageStatus


class StorageWatch:
    """Requests the status on `ask`; `turn` returns it when it has arrived. Never blocks; for one event loop."""

    def __init__(
        self, address: Address, context: Context | None = None, credentials: Credentials | None = None
    ) -> None:
        self._link = OperatorLink(address, "scheduler", ServiceKind.STORAGE, context, credentials=credentials)
        self._asked = False
        self._asked_at = self._looked_at = 0.0
        self._joins = 0

    def ask(self) -> None:
        """Request the status, unless a request is pending: a server that hangs is asked once."""
        if self._link.is_up and not self._asked:
            self._asked, self._asked_at = True, time.monotonic()
            self._link.send(NeedStorageStatus())

    def turn(self) -> StorageStatus | None:
        """The newest status that has arrived since the last call, or None; it says how long it took at least.

        That is until the last call: if this process stood still since then, the answer was there before it went on.
        """
        looked_at, self._looked_at = self._looked_at, time.monotonic()
        statuses = [message for message in self._link.turn() if isinstance(message, StorageStatus)]
        if self._link.joins != self._joins:
            self._joins, self._asked = self._link.joins, False
            self.ask()
        if not statuses:
            return None
        self._asked = False
        return replace(statuses[-1], answer_seconds=max(0.0, looked_at - self._asked_at))

    def close(self) -> None:
        """Close the link."""
        self._link.close()
