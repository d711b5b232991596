"""`orb_aws_ec2`: units are instances of EC2."""

from __future__ import annotations

import base64
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scaler_io.provisioning.provisioner import Provisioner, ProvisionerError, UnitPhase, UnitReport
from scaler_io.service.options import REQUIRED, Option, Refusal, UsageError, comma_list
from scaler_protocol.handshake import MANAGER_VARIABLE, UNIT_VARIABLE
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.managers.aws import AwsOptions, aws_options, digest, for_each, pages
from scaler_worker.managers.options import manager_command, pairs
from scaler_worker.managers.running import run_manager
from scaler_worker.managers.unit_ranges import UnitRange, ranges

POLL_SECONDS: Final = 5.0
USER_DATA_LIMIT: Final = 16 * 1024
_IMAGE_PARAMETER: Final = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
_FLEET_TAG: Final = "scaler:fleet"
_STEM_TAG: Final = "scaler:unit-stem"
_FIRST_TAG: Final = "scaler:unit-first"
_TAKEN_AWAY: Final = "Server.SpotInstance"
_SCALER: Final = re.compile(r"\bscaler\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Options(AwsOptions):
    """The command line of `scaler_worker_manager orb_aws_ec2`."""

    image_id: str | None
    python_version: str | None
    requirements_txt: str | None
    key_name: str | None
    subnet_id: str | None
    instance_type: str
    spot: bool
    security_group_ids: tuple[str, ...]
    instance_tags: dict[str, str]

    def __post_init__(self) -> None:
        # Not super(): dataclass(slots=True) makes a new class, which super() in its methods does not refer to.
        AwsOptions.__post_init__(self)
        if not self.image_id and not (self.python_version and self.requirements_txt):
            raise UsageError(
                "missing --image-id: name an image that contains scaler_cluster,"
                " or say what to install with --python-version and --requirements-txt"
            )
        if self.requirements_txt and not _SCALER.search(self.requirements_txt):
            raise UsageError("--requirements-txt does not name scaler: the instances could not start scaler_cluster")
        if self.requirements_txt and not self.python_version:
            raise UsageError("--requirements-txt needs --python-version: the Python to install them for")

    def user_data(self, units: UnitRange) -> str:
        """The start script of instances, run as root; raises ProvisionerError if it is longer than EC2 allows.

        Instances of one call have the same text: each tells by its launch index which unit it is.
        """
        command = shlex.join(["scaler_cluster", *self.unit_words("")])
        text = _USER_DATA.format(
            install=self._installation(),
            manager=f"{MANAGER_VARIABLE}={shlex.quote(self.worker_manager_id)}",
            unit=f"{UNIT_VARIABLE}={shlex.quote(units.base)}-$(({units.first} + index))",
            command=_WATCHED.format(command=command) if self.spot else command,
        )
        if len(base64.b64encode(text.encode())) > USER_DATA_LIMIT:
            raise ProvisionerError(f"the start script of an instance is longer than {USER_DATA_LIMIT} bytes")
        return text

    def _installation(self) -> str:
        if not self.requirements_txt:
            return ""
        return _INSTALLATION.format(
            requirements=shlex.quote(self.requirements_txt), python=shlex.quote(str(self.python_version))
        )


_USER_DATA: Final = """\
#!/bin/bash
# An agent, and the end of the instance when the agent has ended, however that happens.
trap 'shutdown -h now' EXIT
set -eu
metadata=http://169.254.169.254/latest
ask() {{
    token=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' $metadata/api/token) &&
        curl -sf -H "X-aws-ec2-metadata-token: $token" $metadata/meta-data/$1
}}
index=$(ask ami-launch-index)
{install}export {manager} {unit}
{command}
"""

_WATCHED: Final = """\
{command} &
agent=$!
# EC2 gives notice two minutes before it takes a spot instance away: the agent drains.
(
    until notice=$(ask spot/instance-action); do sleep 5; done
    echo "EC2 takes this instance away: $notice"
    kill $agent
) &
wait $agent\
"""

_INSTALLATION: Final = """\
command -v pip3 || dnf install -y python3-pip
pip3 install uv
printf '%s\\n' {requirements} > /opt/scaler.txt
uv venv --python {python} /opt/scaler
uv pip install --python /opt/scaler/bin/python -r /opt/scaler.txt
export PATH=/opt/scaler/bin:$PATH
"""


def requirements(text: str) -> str:
    """The content of a requirements file, given as such or as a path; raises ValueError if the file cannot be read."""
    if "\n" in text or not text.endswith(".txt"):
        return text
    try:
        return Path(text).read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{text}: {error.strerror or error}") from error


COMMAND: Final = manager_command(
    "orb_aws_ec2",
    "Start workers on instances of EC2 as the scheduler wants them.",
    Ec2Options,
    (
        *aws_options(region=REQUIRED),
        Option(("--image-id",), "an image that contains scaler_cluster; Amazon Linux 2023 if left out", default=None),
        Option(
            ("--python-version",),
            "the Python of the instances, if it is not the manager's; installed with --requirements-txt",
            default=None,
        ),
        Option(
            ("--requirements-txt",),
            "what instances install before their agent starts, scaler included: a file, or its content",
            requirements,
            default=None,
        ),
        Option(("--key-name",), "the key pair for logins", default=None),
        Option(("--subnet-id",), "the subnet; the default one if left out", default=None),
        Option(("--instance-type",), "the type; see --workers-per-unit", default="t2.micro"),
        Option(
            ("--spot",),
            "spot instances, which EC2 may take away; agents drain when it gives notice",
            default=False,
            flag=True,
        ),
        Option(
            ("--security-group-ids",),
            "the security groups, separated by commas; the VPC's default one if left out",
            comma_list,
            default=(),
        ),
        Option(("--instance-tags",), "further tags of the instances, like team=research", pairs, default={}),
    ),
    (
        Refusal(("--debug-dump-path",), "EC2 shows the start script and the console log of an instance; leave it out"),
        Refusal(("--network-backend",), "there is one transport; leave it out"),
    ),
    example="scaler_worker_manager orb_aws_ec2 tcp://10.0.0.5:2345 --worker-manager-id ec2 --aws-region us-east-1"
    " --image-id ami-0a1b2c3d",
)


class Ec2Provisioner(Provisioner):
    """Runs one instance for each unit."""

    def __init__(self, options: Ec2Options) -> None:
        self._options = options
        self._ec2, self._ssm = options.clients("ec2", "ssm")
        self._lock = threading.Lock()
        self._ids: dict[str, str] = {}
        """The instance of each unit that may live."""
        self._image = options.image_id

    def start(self, units: Sequence[str], offer: int) -> Sequence[str]:
        """Start instances: one call for all units whose numbers follow each other."""
        if self._image is None:
            self._image = self._ssm.get_parameter(Name=_IMAGE_PARAMETER)["Parameter"]["Value"]
        accepted: list[str] = []
        for each in ranges(units):
            try:
                accepted += self._run(each)
            except Exception as error:
                raise ProvisionerError(str(error), accepted) from error
        return accepted

    def stop(self, units: Sequence[str], *, force: bool) -> None:
        """Terminate instances; one that EC2 does not let go keeps none of the others."""
        if not self._ids.keys() >= set(units):
            self.list_units()  # the scheduler tells of units of earlier lives before a listing does
        with self._lock:
            ids = [self._ids[unit] for unit in units if unit in self._ids]
        for page in pages(ids):
            try:
                self._ec2.terminate_instances(InstanceIds=page)
            except Exception:
                for_each(lambda id: self._ec2.terminate_instances(InstanceIds=[id]), page)

    def list_units(self) -> Mapping[str, UnitReport]:
        """The instances that this manager has started, and those that have ended in the last hour."""
        listing = self._ec2.get_paginator("describe_instances")
        filters = [{"Name": f"tag:{_FLEET_TAG}", "Values": [self._options.fleet]}]
        reports = {}
        for page in listing.paginate(Filters=filters, PaginationConfig={"PageSize": 100}):
            for instance in _instances(page):
                unit, report = _unit(instance), _report(instance)
                reports[unit] = report
                with self._lock:
                    if report.phase.has_ended:
                        self._ids.pop(unit, None)
                    else:
                        self._ids[unit] = instance["InstanceId"]
        return reports

    def close(self) -> None:
        """Nothing is held."""

    def _run(self, units: UnitRange) -> list[str]:
        options = self._options
        instance_tags = {
            "Name": f"scaler {options.worker_manager_id}",
            **options.instance_tags,
            _FLEET_TAG: options.fleet,
            _STEM_TAG: f"{units.base}-",
            _FIRST_TAG: str(units.first),
        }
        wishes = {
            "KeyName": options.key_name,
            "SubnetId": options.subnet_id,
            "SecurityGroupIds": list(options.security_group_ids),
            "InstanceMarketOptions": {"MarketType": "spot"} if options.spot else None,
        }
        answer = self._ec2.run_instances(
            ImageId=self._image,
            InstanceType=options.instance_type,
            MinCount=1,
            MaxCount=units.size,
            ClientToken=digest(f"{options.fleet}/{units.units[0]}"),
            UserData=options.user_data(units),
            # The default is to stop: what has shut down would be paid for, unseen.
            InstanceInitiatedShutdownBehavior="terminate",
            TagSpecifications=[
                {
                    "ResourceType": "instance",
                    "Tags": [{"Key": name, "Value": value} for name, value in instance_tags.items()],
                }
            ],
            **{name: value for name, value in wishes.items() if value},
        )
        started = {units.units[each["AmiLaunchIndex"]]: each["InstanceId"] for each in answer["Instances"]}
        with self._lock:
            self._ids.update(started)
        return list(started)


def _instances(page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for reservation in page["Reservations"]:
        yield from reservation["Instances"]


def _unit(instance: Mapping[str, Any]) -> str:
    found = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    return f"{found[_STEM_TAG]}{int(found[_FIRST_TAG]) + instance['AmiLaunchIndex']}"


def _report(instance: Mapping[str, Any]) -> UnitReport:
    state = instance["State"]["Name"]
    if state == "pending":
        return UnitReport(UnitPhase.STARTING)
    if state in ("shutting-down", "terminated"):
        cause = instance.get("StateReason", {})
        phase = UnitPhase.RECLAIMED if cause.get("Code", "").startswith(_TAKEN_AWAY) else UnitPhase.ENDED
        reason = cause.get("Message") or instance.get("StateTransitionReason")
        return UnitReport(phase, reason or "the instance was terminated")
    return UnitReport(UnitPhase.RUNNING)


def run(options: Ec2Options) -> int:
    """Run the manager until it has ended."""
    config = options.config_of("orb_aws_ec2", poll_seconds=POLL_SECONDS, python=options.python_version)
    return run_manager(options, lambda: Ec2Provisioner(options), config)
