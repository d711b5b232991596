"""StorageOrders: the scheduler's link to object storage, which it tells what to keep, delete and copy."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from scaler_io.security.keyring import Credentials
from scaler_io.service.operator_link import OperatorLink
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.sessions import KeepSession
from scaler_protocol.storage import CopyReplicas
from scaler_scheduler.core.state import SendToStorage

LOGGER = logging.getLogger("scaler")
SOON_SECONDS: Final = 0.01
IDLE_SECONDS: Final = 0.5


class StorageOrders:
    """Owns named sessions in storage from their first message on, and again if the server was replaced.

    Orders to copy are not repeated to another server. Opens the link with the first message. Never blocks; for the
    running loop.
    """

    def __init__(self, address: Address, credentials: Credentials | None) -> None:
        self._address, self._credentials = address, credentials
        self._loop = asyncio.get_running_loop()
        self._kept: dict[int, KeepSession] = {}
        self._ended: dict[int, KeepSession] = {}
        """Sessions that ended while there was no link; those that have begun again since are not among them."""
        self._link: OperatorLink | None = None
        self._joins = 0
        self._problem = ""
        self._timer: asyncio.TimerHandle | None = None

    def send(self, effect: SendToStorage) -> None:
        """Send a message as soon as there is a link."""
        message = effect.message
        if isinstance(message, KeepSession):
            self._kept.pop(message.session, None)
            self._ended.pop(message.session, None)
            if message.keep:
                self._kept[message.session] = message
            elif self._link is None or not self._link.is_up:
                self._ended[message.session] = message
        if self._link is None:
            self._link = OperatorLink(self._address, "scheduler", ServiceKind.STORAGE, credentials=self._credentials)
        # Sessions are sent when the link comes up; orders to copy must not pile up while a server is away.
        is_dropped = isinstance(message, CopyReplicas) and self._link.problem
        if self._link.is_up or not (is_dropped or isinstance(message, KeepSession)):
            self._link.send(message)
        self._turn()

    def _turn(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._link is None:
            return
        self._link.turn()
        if self._link.joins != self._joins:  # a new stream: the server knows nothing of earlier messages
            self._joins = self._link.joins
            for message in (*self._ended.values(), *self._kept.values()):
                self._link.send(message)
            self._ended.clear()
            self._link.turn()
        if self._link.problem and self._link.problem != self._problem:
            LOGGER.warning(
                "Scheduler: results of named sessions may get lost in storage, and big ones are not copied: %s: %s",
                self._address,
                self._link.problem,
            )
        self._problem = self._link.problem
        seconds = IDLE_SECONDS if self._link.is_up else SOON_SECONDS
        self._timer = self._loop.call_later(seconds, self._turn)

    def close(self) -> None:
        """End the link."""
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.close()
