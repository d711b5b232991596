"""The same hosts and clients in a process of their own, over real ZeroMQ.

The two processes take turns: the hosts write what is due at a virtual time, the service handles all of it, the hosts
read all of its answers. So messages meet as they would in a busy cluster, however busy this machine is.
"""

from __future__ import annotations

import multiprocessing
import random
import select
import time
from multiprocessing.connection import Connection
from typing import Any

import zmq
from cluster import STEP_SECONDS, Caller, Host, Peer, Peers, Service

from scaler_io.transport.zeromq import Dialer, Listener
from scaler_protocol.addresses import Address

SECONDS = 60.0
"""Real seconds after which a message that has not arrived is a failure."""
GATHER_SECONDS = 0.002
"""Real seconds for the last messages of a step to arrive together."""


class _RemotePeers(Peers):
    """The peers, in their process."""

    def __init__(self, address: Address, hosts: int, workers: int, seconds: tuple[float, float]) -> None:
        super().__init__()
        self.now, seed = 100.0, random.Random(7)
        context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, 4 * hosts + 100)
        self.caller = Caller(1, self.now)
        peers: list[Peer] = [self.caller, *(Host(at, workers, seconds, seed, self.now) for at in range(hosts))]
        self._dialers = {}
        for peer in peers:
            self.all[peer.route] = peer
            self._dialers[peer.route] = Dialer(address, peer.uplink, context)
            self._dialers[peer.route].turn(self.now)
            self.flush(peer, self.now)

    def write(self, peer: Peer, now: float) -> None:
        self._dialers[peer.route].flush(now)

    def read(self, expected: int) -> None:
        """Read until so many messages have come since the start."""
        deadline = time.monotonic() + SECONDS
        while sum(peer.uplink.messages_received for peer in self.all.values()) < expected:
            for route, dialer in self._dialers.items():
                if dialer.readable():
                    for event in dialer.turn(self.now):
                        self.all[route].handle(event, self.now)
                    self.wake(self.all[route], self.now)
            assert time.monotonic() < deadline, "messages of the service are missing"

    def step(self, now: float, submitted: int) -> int:
        """Submit tasks and do what is due; returns how many messages were sent since the start."""
        self.now = now
        if submitted:
            self.caller.submit(submitted)
            self.flush(self.caller, now)
        self.look(now)
        return sum(peer.uplink.messages_sent for peer in self.all.values())


def _serve(pipe: Connection, address: str, hosts: int, workers: int, seconds: tuple[float, float]) -> None:
    peers = _RemotePeers(Address.parse(address), hosts, workers, seconds)
    pipe.send((sum(peer.uplink.messages_sent for peer in peers.all.values()), 0))
    while (order := pipe.recv()) is not None:
        now, expected, submitted = order
        peers.read(expected)
        pipe.send((peers.step(now, submitted), peers.caller.ended))


class SocketCluster:
    """A scheduler behind ZeroMQ in this process, its peers in another one."""

    def __init__(self, hosts: int, workers: int, seconds: tuple[float, float]) -> None:
        self._listener = Listener(Address("127.0.0.1", 0))
        self.service = Service(self._listener)
        self.now, self.ended = 100.0, 0
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, str(self._listener.address), hosts, workers, seconds)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._receive()
        self.run(2.0)

    def _receive(self) -> None:
        """Let the service handle all that its peers have written."""
        written, self.ended = self._pipe.recv()
        time.sleep(GATHER_SECONDS)
        deadline = time.monotonic() + SECONDS
        while True:
            self.service.turn(self.now)
            for watched in self._listener.watched:
                watched.process_events()
            if sum(self.service.hub.received.values()) >= written:
                break
            if not self._listener.readable():
                select.select([self._listener.fileno()], [], [], 0.01)
            assert time.monotonic() < deadline, "messages of the peers are missing"

    def _step(self, submitted: int = 0) -> None:
        self.now += STEP_SECONDS
        self._pipe.send((self.now, sum(self.service.hub.sent.values()), submitted))
        self._receive()

    def run(self, seconds: float) -> dict[str, float]:
        """So much virtual time; returns the CPU seconds of the service and of ZeroMQ's threads."""
        return self._measured(lambda until=self.now + seconds: self.now < until, lambda: 0)

    def work(self, tasks: int, waiting: int) -> dict[str, float]:
        """Keep so many tasks waiting until `tasks` more have ended; returns CPU seconds as `run` does."""
        queue = self.service.core.state.waiting
        until = self.ended + tasks
        return self._measured(lambda: self.ended < until, lambda: max(0, waiting - queue.count))

    def _measured(self, goes_on: Any, lack: Any) -> dict[str, float]:
        spent, own, all_threads = self.service.spent, time.thread_time(), time.process_time()
        while goes_on():
            self._step(lack())
        own, all_threads = time.thread_time() - own, time.process_time() - all_threads
        return {"turns": self.service.spent - spent, "threads": all_threads - own}

    def close(self) -> None:
        """End the other process."""
        self._pipe.send(None)
        self._process.join(SECONDS)
        self._listener.close()
