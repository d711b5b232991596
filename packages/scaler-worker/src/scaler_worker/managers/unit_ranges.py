"""Units with consecutive numbers, which a provider starts by one call. Pure, no IO."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from scaler_io.provisioning.provisioner import ProvisionerError

_UNIT: Final = re.compile(r"(?P<base>.+)-(?P<number>\d+)")


class UnitRange(NamedTuple):
    """Units with consecutive numbers: those of one array job, or of one call for instances."""

    base: str
    first: int
    size: int

    @property
    def units(self) -> tuple[str, ...]:
        """Their names; the position is the index of the array task or of the instance."""
        return tuple(f"{self.base}-{number}" for number in range(self.first, self.first + self.size))


def ranges(units: Sequence[str], largest: int | None = None) -> Iterator[UnitRange]:
    """Units as few ranges of at most `largest` units; raises ProvisionerError for a name without a number."""
    current: UnitRange | None = None
    for unit in units:
        found = _UNIT.fullmatch(unit)
        if not found:
            raise ProvisionerError(f"unit {unit} has no number")
        base, number = found["base"], int(found["number"])
        if current and current.base == base and current.first + current.size == number and current.size != largest:
            current = current._replace(size=current.size + 1)
            continue
        if current:
            yield current
        current = UnitRange(base, number, 1)
    if current:
        yield current
