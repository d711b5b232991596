"""Requirements of tasks, and worker classes that meet them. Pure, no IO."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from scaler_protocol.capabilities import Capabilities, missing
from scaler_protocol.handshake import Hello
from scaler_protocol.lazy_dataclass import dataclass

Runtime = tuple[str, str] | None
"""Python's and cloudpickle's versions (minor); None for calls that need neither."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """The requirement of a task: capabilities, a Python that can load it, and maybe one agent, given by identity."""

    capabilities: Capabilities
    runtime: Runtime
    agent: bytes = b""

    def unmet_by(self, worker_class: WorkerClass) -> list[str]:
        """Needs of the task that workers of this class lack, as text; empty if they can run it."""
        lacks = missing(self.capabilities, dict(worker_class.capabilities))
        if self.runtime is not None and self.runtime != worker_class.runtime:
            lacks.append(describe_runtime(self.runtime))
        return lacks

    def share_of(self, worker_class: WorkerClass) -> Capabilities:
        """What a run of the task takes of the consumables of an agent of this class; presence alone takes one."""
        return self.part_of(worker_class.consumables) if worker_class.consumables else ()

    def part_of(self, consumables: Container[str]) -> Capabilities:
        """What a run of the task takes of these consumables."""
        return tuple((name, max(1, wanted)) for name, wanted in self.capabilities if wanted and name in consumables)


@dataclass(frozen=True, slots=True)
class WorkerClass:
    """The capabilities and the Python that every worker of an agent has."""

    capabilities: Capabilities
    runtime: Runtime
    consumables: tuple[str, ...] = ()
    """The capabilities of which all runs of such an agent, or of the cluster, together have a quantity."""
    totals: tuple[int, ...] = ()
    """How much of each, as far as it is known."""


def worker_class_of(capabilities: Capabilities, runtime: Runtime, quantities: Mapping[str, int]) -> WorkerClass:
    """The class of workers that offer these capabilities, and have these quantities of some of them together."""
    names, totals = zip(*sorted(quantities.items()), strict=True) if quantities else ((), ())
    return WorkerClass(capabilities, runtime, names, totals)


def unmet_by_offer(requirement: Requirement, worker_class: WorkerClass) -> list[str]:
    """Needs that workers of an offer lack, as text, as far as is known before they join; empty if they lack none.

    An offer without a runtime is assumed to have the right one: a manager may not know what a machine image holds.
    """
    if worker_class.runtime is None:
        requirement = replace(requirement, runtime=None)
    return requirement.unmet_by(worker_class)


def is_met_by_offer(requirement: Requirement, worker_class: WorkerClass) -> bool:
    """Whether the workers of an offer can run tasks of a requirement, as far as is known before they join."""
    return not unmet_by_offer(requirement, worker_class)


def runtime_of(hello: Hello) -> Runtime:
    """The versions that both ends of a pickle must share: Python and cloudpickle, without patch levels."""
    if not hello.python:
        return None
    return ".".join(hello.python.split(".")[:2]), ".".join(hello.cloudpickle.split(".")[:2])


def describe_runtime(runtime: Runtime) -> str:
    """A runtime as text."""
    return f"Python {runtime[0]} with cloudpickle {runtime[1]}" if runtime else "any Python"
