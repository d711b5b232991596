"""Messages for operating a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drain:
    """A worker must finish its task and end. `agent` is its agent's number in MonitorStatus, `pid` its process id.

    Process id 0 means all workers of the agent; the agent then ends, too.
    """

    agent: int
    pid: int


@dataclass(frozen=True, slots=True)
class Resized:
    """The agent's current number of workers, without drained ones."""

    workers: int


OperatorMessage = Drain | Resized
