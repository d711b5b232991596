"""Messages for operating a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drain:
    """A worker, named by its agent's number in MonitorStatus and its process id, must finish its task and end.

    Process id 0 names all workers of the agent, which then ends, too.
    """

    agent: int
    pid: int


@dataclass(frozen=True, slots=True)
class Resized:
    """The agent's current number of workers, without drained ones."""

    workers: int


OperatorMessage = Drain | Resized
