"""The result of `Client.workers`, and the request for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scaler_client.parameters import check, timeout_of
from scaler_protocol.capabilities import parse_capabilities
from scaler_protocol.capacity import WorkerList
from scaler_protocol.errors import SchedulerLostError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.ranges import Whole

if TYPE_CHECKING:
    from scaler_client.runtime.io_thread import IoThread

WORKERS = Whole(0, 2**32 - 1)
"""How many workers a client can wait for."""


@dataclass(frozen=True, slots=True)
class WorkerHost:
    """The workers of one `scaler_cluster`. Listed by `Client.workers`.

    Attributes:
        host: the name of the host.
        workers: number of worker processes.
        capabilities: what each of them offers, by name; -1 for presence, otherwise a quantity.
        manager: id of the worker manager that started it; empty if none did.

    >>> [host.workers for host in client.workers().hosts]
    [2]
    """

    host: str
    workers: int
    capabilities: Mapping[str, int]
    manager: str


@dataclass(frozen=True, slots=True)
class ConnectedWorkers:
    """The workers that are connected, without those that drain. Made by `Client.workers`.

    Attributes:
        hosts: one WorkerHost for each `scaler_cluster`, as a tuple.

    >>> client.workers().count
    2
    """

    hosts: tuple[WorkerHost, ...]

    @property
    def count(self) -> int:
        """Number of workers.

        >>> client.workers().count
        2
        """
        return sum(host.workers for host in self.hosts)

    @classmethod
    def _of(cls, answer: WorkerList) -> ConnectedWorkers:
        columns = zip(answer.hosts, answer.workers, answer.capabilities, answer.managers, strict=True)
        return cls(tuple(WorkerHost(host, size, parse_capabilities(text), id) for host, size, text, id in columns))


def connected_workers(io: IoThread) -> ConnectedWorkers:
    """The workers now; raises SchedulerLostError, HandshakeRefusedError, ClientQuitError."""
    answer = io.worker_lists.ask(0, None)
    assert answer is not None
    return ConnectedWorkers._of(answer)


def wait_for_workers(io: IoThread, n: int, timeout: float | None) -> ConnectedWorkers:
    """The workers, once there are `n`; raises as `connected_workers` does, TimeoutError, ValueError."""
    check("n", n, WORKERS)
    if timeout is not None:
        timeout = timeout_of("timeout", timeout)
    answer = io.worker_lists.ask(n, timeout)
    if answer is None:
        raise SchedulerLostError(f"the scheduler at {io.address} has not answered within {timeout:g} s")
    workers = ConnectedWorkers._of(answer)
    if workers.count < n:
        raise TimeoutError(
            f"{workers.count} of {n} workers are connected after {timeout:g} s: start more of them with"
            f" scaler_cluster {io.address}; worker managers start workers when tasks wait: scaler status {io.address}"
        )
    return workers
