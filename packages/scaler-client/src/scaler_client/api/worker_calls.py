"""Calls that every worker runs: `Client.run` and `Client.restart_workers`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scaler_client.api.submitter import CallSubmitter
from scaler_client.calls.encoding import Callee
from scaler_client.calls.task_options import NO_OPTIONS
from scaler_client.futures.futures import ScalerFuture
from scaler_client.futures.waiters import deadline
from scaler_client.parameters import items, timeout_of
from scaler_client.runtime.worker_lists import LAST_SECONDS
from scaler_client.task_context import runtime
from scaler_protocol.capacity import ProcessList
from scaler_protocol.errors import WorkerDiedError
from scaler_protocol.ids import worker_id
from scaler_protocol.messages import pieces_of
from scaler_protocol.ranges import shown

if TYPE_CHECKING:
    from scaler_client.runtime.io_thread import IoThread


class WorkerCalls:
    """Calls on the workers of a cluster, which all of them must end by `timeout` seconds from now."""

    def __init__(self, io: IoThread, calls: CallSubmitter, timeout: float | None) -> None:
        if timeout is not None:
            timeout = timeout_of("timeout", timeout)
        self._io, self._calls, self._timeout = io, calls, timeout
        self._until = deadline(timeout)

    def run(self, callee: Callee, args: tuple[Any, ...], workers: Iterable[str] | None) -> dict[str, Any]:
        """The result of the call, or its exception, by worker."""
        callee.check.check(*args)
        return self._run(callee, args, _chosen(self._processes(), workers))

    def _run(self, callee: Callee, args: tuple[Any, ...], chosen: Mapping[str, bytes]) -> dict[str, Any]:
        futures: dict[str, ScalerFuture[Any]] = {}
        try:
            for name, worker in chosen.items():
                group = self._calls.group_with(callee, replace(NO_OPTIONS, worker=worker))
                futures[name] = self._calls.send(group, args, {})
            with self._calls.waiting:
                wait(futures.values(), self._left)
            return {name: self._outcome(name, future) for name, future in futures.items()}
        finally:
            for future in futures.values():
                future.cancel()

    def restart(self, why: str, workers: Iterable[str] | None) -> list[str]:
        """Have the workers end after their present task; returns them when others have taken their places."""
        ending = _chosen(self._processes(), workers)
        for outcome in self._run(self._calls.find_own(_retire), (why,), ending).values():
            if isinstance(outcome, BaseException) and not isinstance(outcome, WorkerDiedError):
                raise outcome
        for some in pieces_of(list(ending.values())):
            if self._io.worker_lists.processes(self._left, tuple(some)) is None:
                there = self._io.worker_lists.processes(LAST_SECONDS)
                left = ending.keys() & _named(there) if there is not None else ending.keys()
                raise TimeoutError(f"{', '.join(sorted(left)) or 'others'} did not end within {self._timeout:g} s")
        return list(ending)

    @property
    def _left(self) -> float | None:
        """Seconds until the deadline."""
        return None if self._timeout is None else max(0.0, self._until - time.monotonic())

    def _processes(self) -> dict[str, bytes]:
        """The ids of all workers, as in messages, by those that users see."""
        answer = self._io.worker_lists.processes(self._left)
        if answer is None:
            raise TimeoutError(
                f"the scheduler at {self._io.address} has not named the workers within {self._timeout:g} s: it does not"
                " answer, or workers of a host are still starting"
            )
        return _named(answer)

    def _outcome(self, name: str, future: ScalerFuture[Any]) -> Any:
        if not future.done():
            return TimeoutError(f"worker {name} did not end the call within {self._timeout:g} s")
        try:
            return future.result()
        except (Exception, CancelledError) as error:
            return error


def _named(answer: ProcessList) -> dict[str, bytes]:
    """The workers as `host:pid`; where hosts have the same name, with the id of the agent behind it."""
    rows = list(zip(answer.hosts, answer.pids, answer.agents, strict=True))
    counts = Counter((host, pid) for host, pid, _ in rows)
    return {
        f"{host}:{pid}@{agent.hex()}" if counts[host, pid] > 1 else f"{host}:{pid}": worker_id(agent, pid)
        for host, pid, agent in rows
    }


def _chosen(named: Mapping[str, bytes], workers: Iterable[str] | None) -> Mapping[str, bytes]:
    """Those of the workers; raises ValueError for one that there is not."""
    if workers is None:
        return named
    if isinstance(workers, (str, bytes)):
        raise TypeError(f"workers={shown(workers)} is one value: give a list of ids, as run() has them")
    chosen = list(items("workers", workers))
    for worker in chosen:
        if worker not in named:
            known = ", ".join(list(named)[:5]) or "none"
            raise ValueError(f"there is no worker {shown(worker)}; the first ones are: {known}")
    return {worker: named[worker] for worker in chosen}


def _retire(why: str) -> None:
    """Have the process of this worker end after this call."""
    here = runtime()
    assert here is not None, "runs in workers only"
    here.retire(why)
