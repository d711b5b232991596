"""Messages about capacity: worker managers that start and stop units, and clients that ask for the workers.

A unit is one agent as its manager starts and stops it: a process, a job, a pod, an instance. Counts are of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from scaler_protocol.lazy_dataclass import dataclass

NO_LIMIT: Final = -1
"""The maximum of a manager that has none."""


class UnitState:
    """How the scheduler sees a unit."""

    GONE: Final = 0
    """Its agent is not connected any more."""
    JOINED: Final = 1
    """Its agent is connected."""
    DRAINING: Final = 2
    """Its agent is connected and finishes its work to leave."""


@dataclass(frozen=True, slots=True)
class ManagerStatus:
    """What a worker manager can start, what it has started, and what keeps it from starting more.

    `maximum` is the most workers of all its offers together, -1 for no limit. An offer is a worker class: capabilities
    as text (`gpu=1,linux`), versions of Python and cloudpickle, the workers of each unit, and those capabilities of
    which a unit has a quantity, with how much (`license=2`). `pending_units` lists the units whose agents the scheduler
    has not reported as joined. `paused_seconds` is the rest of a back-off after failures, `startup_seconds` the median
    time from a request to the agent's connection, 0 if unknown.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("offer_capabilities", "offer_pythons", "offer_cloudpickles", "unit_sizes", "offer_quantities"),
        ("pending_units", "pending_offers"),
    )

    kind: str
    maximum: int
    offer_capabilities: Sequence[str]
    offer_pythons: Sequence[str]
    offer_cloudpickles: Sequence[str]
    unit_sizes: Sequence[int]
    offer_quantities: Sequence[str]
    pending_units: Sequence[str] = ()
    pending_offers: Sequence[int] = ()
    failure: str = ""
    paused_seconds: float = 0.0
    startup_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DesiredWorkers:
    """The workers wanted of each offer of a manager, draining ones not counted, and why; no numbers: keep them.

    `units` lists the manager's units whose state has changed since the last such message, all of them in the first.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("units", "unit_states"),)

    workers: Sequence[int]
    reason: str = ""
    units: Sequence[str] = ()
    unit_states: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ListWorkers:
    """A client asks for the workers, once at least `at_least` of them are connected."""

    request: int
    at_least: int = 0


@dataclass(frozen=True, slots=True)
class WorkerList:
    """The answer to ListWorkers: a row per agent."""

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("hosts", "workers", "capabilities", "managers"),)

    request: int
    hosts: Sequence[str] = ()
    workers: Sequence[int] = ()
    capabilities: Sequence[str] = ()
    managers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ListProcesses:
    """A client asks for the workers' processes, and the scheduler asks each agent for those of its own.

    The answer comes when the workers `gone`, given by their ids, have ended.
    """

    request: int
    gone: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class ProcessList:
    """The answer to ListProcesses, or a part of it: a row per worker; `left` ones follow in further messages.

    An agent leaves out `agents` and `hosts`, which are the same for all.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (("pids", "names", "agents", "hosts"),)
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"agents", "hosts"})

    request: int
    pids: Sequence[int] = ()
    names: Sequence[str] = ()
    agents: Sequence[bytes] = ()
    hosts: Sequence[str] = ()
    left: int = 0


CapacityMessage = ManagerStatus | DesiredWorkers | ListWorkers | WorkerList | ListProcesses | ProcessList
