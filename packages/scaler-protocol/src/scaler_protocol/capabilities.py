"""Capabilities: what workers offer and tasks require."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scaler_protocol.errors import CapabilityError
from scaler_protocol.limits import CAPABILITIES, CAPABILITY_NAME, CAPABILITY_VALUE
from scaler_protocol.ranges import shown

PRESENT = -1
"""The value of a capability without a quantity."""

Capabilities = tuple[tuple[str, int], ...]
"""Pairs of name and value, sorted, so that equal sets compare equal."""


def capabilities(given: Mapping[str, int] | None) -> Capabilities:
    """The canonical form of a mapping from name to quantity; raises CapabilityError that names the fault."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise CapabilityError(f"capabilities is {shown(given)}, not a mapping from names to whole numbers")
    if len(given) > CAPABILITIES:
        raise CapabilityError(f"{len(given):,} capabilities are given, at most {CAPABILITIES} are allowed")
    for name, value in given.items():
        if fault := CAPABILITY_NAME.fault(name):
            raise CapabilityError(f"the name of a capability {fault}")
        if isinstance(value, bool) or CAPABILITY_VALUE.fault(value):
            wanted = f"a whole number from 0 to {CAPABILITY_VALUE.most:,}, or -1 for presence alone"
            raise CapabilityError(f"capability {name}={shown(value)}: give {wanted}")
    return tuple(sorted((name, int(value)) for name, value in given.items()))


def parse_capabilities(text: str) -> dict[str, int]:
    """Read `"gpu=1,linux"`; a bare name means presence. Raises CapabilityError that names the item and the remedy."""
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = item.partition("=")
        name = name.strip()
        try:
            number = int(value) if equals else PRESENT
        except ValueError:
            raise CapabilityError(f"capability {item!r}: write name or name=whole number, like gpu=1,linux") from None
        if not name or name in found:
            raise CapabilityError(f"capability {item!r}: {'given twice' if name else 'the name is missing'}")
        found[name] = number
    capabilities(found)
    return found


def parse_quantities(text: str) -> dict[str, int]:
    """Read `"license=2,dongle=1"`, where each is at least 1; raises CapabilityError as `parse_capabilities` does."""
    found = parse_capabilities(text)
    for name, value in found.items():
        if value < 1:
            given = name if value == PRESENT else f"{name}={value}"
            raise CapabilityError(f"capability {given!r}: give a quantity of at least 1, like license=2")
    return found


def missing(required: Iterable[tuple[str, int]], offered: Mapping[str, int]) -> list[str]:
    """The required capabilities that a worker with `offered` lacks, as texts; empty if it can take the task.

    A quantity is compared with the offer of one worker, and is not consumed; -1 on either side means presence alone.
    """
    lacks = []
    for name, wanted in required:
        have = offered.get(name)
        if have is None or (wanted != PRESENT and have != PRESENT and have < wanted):
            lacks.append(name if wanted == PRESENT else f"{name}={wanted}")
    return lacks
