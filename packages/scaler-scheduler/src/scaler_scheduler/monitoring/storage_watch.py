"""A look at the object storage server, for monitors."""

from __future__ import annotations

from scaler_io.service.operator_link import OperatorLink
from scaler_io.transport.zeromq import Context
from scaler_protocol.addresses import Address
from scaler_protocol.monitoring import NeedStorageStatus, StorageStatus


class StorageWatch:
    """Asks for figures when it is told to, and has the answer some turns later. Never waits; one loop owns it."""

    def __init__(self, address: Address, context: Context | None = None) -> None:
        self._link = OperatorLink(address, "scheduler", context)
        self._asked = False
        self._beginning = 0

    def ask(self) -> None:
        """Have the figures sent, unless they are on their way: a server that hangs is asked once."""
        if self._link.is_up and not self._asked:
            self._asked = True
            self._link.send(NeedStorageStatus())

    def turn(self) -> StorageStatus | None:
        """The newest figures, if any have come since the last time."""
        figures = [message for message in self._link.turn() if isinstance(message, StorageStatus)]
        if self._link.beginnings != self._beginning:
            self._beginning, self._asked = self._link.beginnings, False
            self.ask()
        if not figures:
            return None
        self._asked = False
        return figures[-1]

    def close(self) -> None:
        """Leave."""
        self._link.close()
