"""Units are started by as few calls as their names allow."""

from __future__ import annotations

import pytest

from scaler_io.provisioning.provisioner import ProvisionerError
from scaler_worker.managers.unit_ranges import UnitRange, ranges


def test_units_whose_names_follow_each_other_are_one_range() -> None:
    names = ["a-b-9", "a-b-10", "a-b-12", "c-13"]
    assert list(ranges(names)) == [UnitRange("a-b", 9, 2), UnitRange("a-b", 12, 1), UnitRange("c", 13, 1)]
    assert [unit for each in ranges(names) for unit in each.units] == names
    assert list(ranges([])) == []


def test_a_range_is_not_larger_than_the_provider_allows() -> None:
    names = [f"grid-a-{number}" for number in (1, 2, 3, 4, 7)]
    assert list(ranges(names, 3)) == [
        UnitRange("grid-a", 1, 3),
        UnitRange("grid-a", 4, 1),
        UnitRange("grid-a", 7, 1),
    ]


def test_a_name_without_a_number_is_an_error() -> None:
    with pytest.raises(ProvisionerError, match="unit x has no number"):
        list(ranges(["x"]))
