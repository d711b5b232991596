"""The common parts of the kinds on AWS: options, clients, names of units. boto3 is imported when a kind runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from scaler_io.provisioning.core import ManagerConfig
from scaler_io.provisioning.provisioner import ProvisionerError
from scaler_io.service.daemon_threads import call_each
from scaler_io.service.options import Option, whole_number
from scaler_protocol.handshake import MANAGER_VARIABLE, UNIT_VARIABLE
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.managers.options import MOST_WORKERS, ManagerOptions

T = TypeVar("T")
PAGE: Final = 100
"""Units of one listing or description: the most that ECS and Batch allow."""
THREADS: Final = 8
"""Calls under way at the same time."""
VISIBLE_SECONDS: Final = 60.0
"""How long a unit may be missing in listings after its start: they are eventually consistent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsOptions(ManagerOptions):
    """The settings of every kind on AWS."""

    aws_region: str
    aws_access_key_id: str | None
    aws_secret_access_key: str | None
    aws_profile: str | None

    @property
    def fleet(self) -> str:
        """Identifies the manager of a unit: no other manager of the account and region has the same text."""
        return f"{self.worker_manager_id}@{self.address}"

    @property
    def fleet_id(self) -> str:
        """The same in 31 characters that every service allows in names."""
        return f"scaler-{digest(self.fleet)[:24]}"

    def environment(self, unit: str) -> dict[str, str]:
        """The variables that tell an agent which unit it is."""
        return {MANAGER_VARIABLE: self.worker_manager_id, UNIT_VARIABLE: unit}

    def config_of(self, kind: str, *, poll_seconds: float, python: str | None = None) -> ManagerConfig:
        """The settings of the manager's core, for units that run this version of Python, or the manager's own."""
        config = self.manager_config(kind, poll_seconds=poll_seconds, visible_seconds=VISIBLE_SECONDS)
        if python:
            config = replace(config, offers=tuple(replace(offer, python=python) for offer in config.offers))
        return config

    def clients(self, *services: str) -> list[Any]:
        """A client of each service, which retries what is throttled; raises ValueError if boto3 is missing."""
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise ValueError(f"the kinds on AWS need boto3 ({error}): install scaler-worker[aws]") from error
        config = Config(retries={"mode": "standard", "max_attempts": 5}, connect_timeout=10, read_timeout=30)
        try:
            session = boto3.Session(
                self.aws_access_key_id,
                self.aws_secret_access_key,
                region_name=self.aws_region,
                profile_name=self.aws_profile,
            )
            return [session.client(service, config=config) for service in services]
        except BotoCoreError as error:
            raise ValueError(f"AWS: {error}") from error


def aws_options(*, region: object = "us-east-1", workers_per_unit: int = 1) -> tuple[Option, ...]:
    """The options of AwsOptions, and defaults of common ones that suit a cloud."""
    return (
        Option(("--aws-region",), "the region", default=region),
        Option(
            ("--aws-access-key-id",),
            "the key; what boto3 finds if left out",
            default=None,
            environment="AWS_ACCESS_KEY_ID",
        ),
        Option(
            ("--aws-secret-access-key",),
            "its secret; better given in the environment, since other users of a host see command lines",
            default=None,
            environment="AWS_SECRET_ACCESS_KEY",
        ),
        Option(("--aws-profile",), "a profile of ~/.aws instead of a key", default=None),
        Option(
            ("--max-task-concurrency", "-mtc"),
            "the most workers; -1 for no limit",
            whole_number(-1, MOST_WORKERS),
            default=32,
        ),
        Option(
            ("--workers-per-unit", "-wpu"),
            "workers of each unit, which starts and ends as a whole",
            whole_number(1, 4096),
            default=workers_per_unit,
        ),
    )


def digest(text: str) -> str:
    """64 hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def name_values(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Variables as ECS and Batch write them."""
    return [{"name": name, "value": value} for name, value in environment.items()]


def unit_of(environment: Sequence[Mapping[str, str]]) -> str:
    """The unit that these variables, as ECS and Batch write them, belong to; empty if it is none."""
    return next((each["value"] for each in environment if each["name"] == UNIT_VARIABLE), "")


def pages(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split into slices of at most PAGE items."""
    return (items[at : at + PAGE] for at in range(0, len(items), PAGE))


def for_each(call: Callable[[str], object], units: Sequence[str]) -> Sequence[str]:
    """Call a function for each unit, several at a time; returns the units.

    Every unit is tried. If a call fails, ProvisionerError holds the first reason and the units whose calls have worked.
    """
    calls = call_each(call, units, THREADS, "scaler-aws")
    errors = [error for future in calls.values() if (error := future.exception())]
    if errors:
        done = [unit for unit, future in calls.items() if future.exception() is None]
        raise ProvisionerError(str(errors[0]), done) from errors[0]
    return units
