"""What the kinds on AWS have in common."""

from __future__ import annotations

import sys

import pytest

from scaler_io.provisioning.provisioner import ProvisionerError
from scaler_worker.managers import aws_batch
from scaler_worker.managers.aws import for_each, name_values, pages, unit_of
from scaler_worker.managers.aws_batch import BatchOptions

WORDS = ["tcp://10.0.0.5:2345", "-q", "queue", "-d", "definition"]


def options(id: str = "batch", *words: str) -> BatchOptions:
    return aws_batch.COMMAND.read([*WORDS, "-wmi", id, *words], {})


def test_a_fleet_belongs_to_one_manager_of_one_scheduler() -> None:
    one = options()
    assert one.fleet == "batch@tcp://10.0.0.5:2345" and one.fleet_id == options().fleet_id
    assert len(one.fleet_id) <= 36, "startedBy of ECS has at most 36 characters"
    others = [options("batch2"), aws_batch.COMMAND.read(["tcp://10.0.0.6:2345", *WORDS[1:], "-wmi", "batch"], {})]
    assert len({one.fleet_id, *(each.fleet_id for each in others)}) == 3


def test_variables_tell_a_unit_who_it_is() -> None:
    written = name_values(options().environment("batch-1"))
    assert unit_of(written) == "batch-1" and unit_of([]) == ""
    assert {"name": "SCALER_WORKER_MANAGER_ID", "value": "batch"} in written


def test_long_lists_are_split_into_pages() -> None:
    assert [len(page) for page in pages(range(250))] == [100, 100, 50]


def test_what_fails_for_one_unit_is_tried_for_all() -> None:
    def refuse_two(unit: str) -> None:
        if unit in ("b", "c"):
            raise OSError(f"{unit} is broken")

    assert for_each(print, ["a", "b"]) == ["a", "b"]
    with pytest.raises(ProvisionerError, match="b is broken") as failed:
        for_each(refuse_two, ["a", "b", "c", "d"])
    assert failed.value.accepted == ["a", "d"]


def test_throttled_calls_are_repeated_by_boto3() -> None:
    (client,) = options("batch", "--aws-access-key-id", "a", "--aws-secret-access-key", "b").clients("batch")
    assert client.meta.config.retries == {"mode": "standard", "total_max_attempts": 6}
    assert client.meta.region_name == "us-east-1"


def test_a_missing_library_and_a_missing_profile_are_errors_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="nobody"):
        options("batch", "--aws-profile", "nobody").clients("batch")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ValueError, match=r"install scaler-worker\[aws\]"):
        options().clients("batch")


def test_the_python_of_units_may_differ_from_the_manager_s() -> None:
    (offer,) = options().config_of("test", poll_seconds=1.0, python="3.12.11").offers
    assert offer.python == "3.12.11"
    (offer,) = options().config_of("test", poll_seconds=1.0).offers
    assert offer.python == ".".join(map(str, sys.version_info[:3]))
