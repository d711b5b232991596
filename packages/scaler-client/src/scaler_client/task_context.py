"""The interface between tasks and the worker process that runs them.

A worker calls `install` once. From then on every Client of that process is a facade over one core, whose messages
travel through `TaskRuntime.connect()` to the agent, and `current_task` answers inside tasks. A process that a task
forks is no worker: it shares nothing with its parent, and a Client there is an ordinary one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from scaler_client.payloads.pickles import load as load_payload
from scaler_client.payloads.pickles import load_with
from scaler_protocol.buffers import Buffer
from scaler_protocol.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from scaler_client.objects.store import StorageDoor
    from scaler_io.links.events import UplinkEvent
    from scaler_protocol.messages import Message


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """The task that runs the calling code. Made by `current_task`.

    Attributes:
        id: the id of the task, the `task_id` of its future.
        attempt: number of the run, from 1; above 1 if the task was run again.
        worker: the name of the worker process.

    >>> future = client.submit(lambda: current_task().id)
    >>> future.result() == future.task_id
    True
    """

    id: int
    attempt: int
    worker: str
    _run: int = field(default=0, repr=False)


class Transport(Protocol):
    """How the core's messages travel. One thread owns it; nothing blocks but `wait`."""

    def turn(self, now: float) -> Sequence[UplinkEvent]:
        """Read what has arrived; the first turn of a transport that needs no connection returns LinkUp."""

    def send(self, message: Message) -> None:
        """Write the message with the next `flush`, or once there is a connection again."""

    def flush(self, now: float) -> Sequence[UplinkEvent]:
        """Write what was sent."""

    def due(self) -> float:
        """When `turn` must be called even if nothing arrives (time.monotonic); infinity if never."""

    def readable(self) -> bool:
        """Whether a turn would read something; called after the last `flush`, before `wait`."""

    def wait(self, wake: int, seconds: float) -> bool:
        """Block until there is something to read here or on `wake`, or the time is over; whether on `wake`."""

    def close(self) -> None:
        """Write what is left, then close."""


class TaskRuntime(Protocol):
    """The interface of a worker process for the tasks that run in it."""

    @property
    def inputs(self) -> Mapping[int, tuple[bool, bytes]]:
        """By task, its result as an input of the current run: whether stored, and the payload or its reference."""

    @property
    def session(self) -> int:
        """The session of the tasks that are submitted in this process, which owns it in object storage."""

    @property
    def storage(self) -> StorageDoor:
        """The process's connection to object storage."""

    def fetch(self, reference: bytes) -> Buffer:
        """The bytes of an object that a call refers to; raises ScalerError."""

    def load(self, reference: bytes) -> Any:
        """The value of a pickled object that a call refers to; raises ScalerError, or the errors of unpickling."""

    @property
    def scheduler(self) -> int:
        """The incarnation of the scheduler that this process works for."""

    def current(self) -> CurrentTask | None:
        """The task that runs, for any of its threads; None between tasks."""

    def retire(self, why: str) -> None:
        """Run no more tasks in this process after the current one; `why` is logged."""

    def connect(self) -> Transport:
        """The channel to the agent; its previous user has stopped."""


_runtime: TaskRuntime | None = None
_parents: TaskRuntime | None = None
"""In a process that a task has forked: the runtime of the task's own process."""


def install(runtime: TaskRuntime) -> None:
    """Make this process one that runs tasks."""
    global _runtime
    _runtime = runtime
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=_leave)


_forwarding_to: Callable[[str | None], str] | None = None


def install_forwarding(runtime: TaskRuntime, address: Callable[[str | None], str]) -> None:
    """Make this process one that loads calls to forward them to another system, and runs none.

    `address` maps the scheduler's address in a client to the address at which the other system reaches the scheduler.
    """
    global _runtime, _forwarding_to
    _runtime, _forwarding_to = runtime, address


def forwarding_to() -> Callable[[str | None], str] | None:
    """The `address` of `install_forwarding`; None in all other processes."""
    return _forwarding_to


def _leave() -> None:
    global _runtime, _parents
    _runtime, _parents = None, _runtime or _parents


def runtime() -> TaskRuntime | None:
    """The runtime of a worker process, None anywhere else."""
    return _runtime


def is_fork() -> bool:
    """Whether a task has forked this process."""
    return _parents is not None


def current_task() -> CurrentTask | None:
    """The task that runs the calling code, or that has forked the calling process; None outside of tasks.

    >>> current_task() is None, client.submit(lambda: current_task().attempt).result()
    (True, 1)
    """
    found = _runtime or _parents
    return found.current() if found is not None else None


def load_input(task: int) -> Any:
    """Load the result of a task. A pickled call contains a call of this function in the place of a future."""
    found, stored, payload = _input(task)
    return found.load(payload) if stored else load_payload(payload)


def load_object(reference: bytes, load: Callable[[Any], Any]) -> Any:
    """Load a stored object. A pickled call contains a call of this function in the place of a large argument."""
    found = _running("an object that a call refers to")
    return found.load(reference) if load is load_payload else load_with(load, found.fetch(reference))


def object_payload(reference: bytes) -> Buffer:
    """The bytes of an object that a call refers to; raises ScalerError, or LookupError outside of tasks."""
    return _running("an object that a call refers to").fetch(reference)


def input_payload(task: int) -> Buffer:
    """The bytes of an input of the current run; raises ScalerError, or LookupError if the run has no such input."""
    found, stored, payload = _input(task)
    return found.fetch(payload) if stored else payload


def _running(what: str) -> TaskRuntime:
    if _runtime is None:
        raise LookupError(f"{what} can be loaded only in the worker that runs the call")
    return _runtime


def _input(task: int) -> tuple[TaskRuntime, bool, bytes]:
    found = _running("the result of another task")
    if task not in found.inputs:
        raise LookupError(f"the result of task {task:x} did not come with the call that needs it")
    return found, *found.inputs[task]


_FEW = 16
_listed: tuple[int, list[int]] = (0, [])
"""A run and its input tasks."""


def load_nth_input(at: int) -> Any:
    """Load an input by its position. A pickled node of a graph contains a call of this function for each input."""
    global _listed
    inputs: Mapping[int, tuple[bool, bytes]] = _runtime.inputs if _runtime is not None else {}
    if at >= len(inputs):
        raise LookupError(f"input {at} did not come with the call that needs it")
    if at < _FEW:
        return load_input(next(islice(inputs, at, None)))
    run = task._run if (task := current_task()) is not None else 0
    if _listed[0] != run:
        _listed = run, list(inputs)
    return load_input(_listed[1][at])
