"""Provisioner: the interface of a provider, which starts, stops and lists units. Pure, no IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

from scaler_protocol.lazy_dataclass import dataclass


class UnitPhase(Enum):
    """The phase of a unit, as its provider reports it."""

    STARTING = "starting"
    """It was asked for, and does not run yet: queued, pending, being installed."""
    RUNNING = "running"
    ENDED = "ended"
    """It has ended. Providers may report it for a while, or not at all."""
    RECLAIMED = "reclaimed"
    """It has ended because its host failed or was needed for others (preemption, spot): no reason to pause starts."""

    @property
    def has_ended(self) -> bool:
        """Whether the unit has ended."""
        return self in (UnitPhase.ENDED, UnitPhase.RECLAIMED)


@dataclass(frozen=True, slots=True)
class UnitReport:
    """A unit as its provider sees it."""

    phase: UnitPhase
    reason: str = ""
    """Of an ended one: why, such as an exit code or the last lines that it wrote. Of a starting one: what keeps it from
    starting, such as an image that does not exist; empty if it only waits for its turn."""
    offer: int = 0
    """The position of the offer that it was started for."""


@dataclass(frozen=True, slots=True)
class OfferSpec:
    """A class of workers that a manager can start."""

    capabilities: str
    """In the syntax of `--per-worker-capabilities`."""
    python: str
    cloudpickle: str
    unit_size: int
    """Workers of one unit."""
    quantities: str = ""
    """Those of the capabilities of which a unit has a quantity, with how much, in the same syntax."""


class ProvisionerError(Exception):
    """A provider refuses or fails; the text is for people and names the cause."""

    def __init__(self, text: str, accepted: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.accepted = accepted
        """The units that it has accepted all the same, if this ends a start."""


class Provisioner(Protocol):
    """A provider of units. The methods block and are called in threads: each at most once at a time, but a start, a
    stop and a listing may overlap. Any of them may raise ProvisionerError or OSError; the manager tries again later."""

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Ask for units with these names; returns the names of those that the provider has accepted.

        If only some are, ProvisionerError names them and the reason. A unit that fails later is reported by
        `list_units`. A name that is asked for twice must not start two units.
        """
        ...

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """Have units end: by SIGTERM, on which an agent drains, or at once with `force`. Unknown names are ignored."""
        ...

    def list_units(self) -> Mapping[str, UnitReport]:
        """All units of this manager, those of its earlier lives included. Raises ProvisionerError if that is unknown:
        an empty answer means that there are none."""
        ...

    def close(self) -> None:
        """Free what the provisioner itself holds; units stay."""
        ...
