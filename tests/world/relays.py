"""Relays of the World: a real RelayCore each, between agents and the scheduler."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import cloudpickle

from scaler_io.links.events import HubEvent
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.links.uplink import LinkState, Uplink
from scaler_io.service.server_loop import ServiceTurn
from scaler_io.simulation.network import MemoryDialer, MemoryListener, MemoryNetwork, MemoryShell
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Hello, Role
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.relay.core import PERMITTED, EndRelay, ReconnectAgents, RelayCore, SendUp

RELAY_ADDRESS = Address(path="/world/relay")
STATUS_SECONDS = 1.0


class RelayLife:
    """One incarnation of a relay's process."""

    def __init__(
        self,
        network: MemoryNetwork,
        address: Address,
        above: Address,
        name: str,
        config: SchedulerConfig,
        timeout_seconds: float,
    ) -> None:
        self.network, self.address = network, address
        random = network.random
        hello = Hello(
            Role.AGENT,
            random.randbytes(16),
            random.randrange(1, 2**24 - 256),
            name=name,
            host=name,
            python=platform.python_version(),
            cloudpickle=cloudpickle.__version__,
            queue_size=1000,
            relay=True,
        )
        self.core = RelayCore(hello, str(above), config)
        self.checked = CheckedRelay(self.core)
        self.dialer = MemoryDialer(network, above, Uplink(hello, network.now, timeout_seconds=timeout_seconds))
        timeouts = PeerTimeouts(config.agent_grace_seconds, config.worker_timeout_seconds)
        self.hub = Hub(hello.incarnation, admit=self.core.admit, timeouts=lambda hello: timeouts, permitted=PERMITTED)
        self.listener: MemoryListener | None = None
        self.service: ServiceTurn | None = None
        self._status_at = network.now
        self.shell: MemoryShell = network.attach(self._turn, self.dialer)

    def _turn(self, now: float) -> float:
        for event in self.dialer.turn(now):
            self.core.hear(event, now)
        if self.core.is_connected and self.listener is None:
            self.listener = MemoryListener(self.network, self.address)
            perform: dict[type, Callable[[Any], object]] = {
                SendUp: lambda effect: self.dialer.uplink.send(effect.message),
                ReconnectAgents: lambda effect: self.hub.reconnect(self.network.now),
                EndRelay: lambda effect: self.shell.kill(),
            }
            self.service = ServiceTurn(
                "Relay", self.listener, self.hub, self.checked, lambda: None, self.network.clock, perform
            )
            self.shell.add(self.listener)
        due = now + 0.05 if self.service is None else self.service.turn(now)
        if now >= self._status_at:
            self._status_at = now + STATUS_SECONDS
            if self.dialer.uplink.state is LinkState.UP:
                self.dialer.uplink.send(self.core.status())
        for event in self.dialer.flush(now):
            self.core.hear(event, now)
        return min(due, self.dialer.uplink.due(), self._status_at)

    def check_nothing_is_held(self) -> None:
        """No leased task."""
        assert not self.core.leases.runs and not self.core.earlier.keepers
        state = self.core._state
        assert state.waiting.count == 0 and not state.withdrawn
        assert not any(session.tasks for session in state.sessions.values())


class CheckedRelay:
    """A RelayCore whose invariants are asserted with every turn, and whose errors are kept."""

    def __init__(self, core: RelayCore) -> None:
        self.core = core
        self.errors: list[Exception] = []

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Take one event in."""
        try:
            self.core.handle(peer, event, now)
        except Exception as error:
            self.errors.append(error)
            raise

    def settle(self, now: float) -> list[object]:
        """Decide once, and look whether all is well."""
        effects = self.core.settle(now)
        self.core.check()
        return list(effects)

    def due(self) -> float | None:
        """When to settle although nothing has happened."""
        return self.core.due()
