"""The messages by which a cluster is looked after."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drain:
    """A worker, by the monitors' number of its agent and its process id, is to finish what it runs, and end."""

    agent: int
    pid: int


@dataclass(frozen=True, slots=True)
class Resized:
    """The agent has so many workers now, those that are drained not counted."""

    workers: int


OperatorMessage = Drain | Resized
