"""Units that are instances of EC2, against moto."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from scaler_io.provisioning.provisioner import ProvisionerError, UnitPhase
from scaler_worker.managers import aws_ec2
from scaler_worker.managers.aws_ec2 import Ec2Options, Ec2Provisioner
from scaler_worker.managers.unit_ranges import UnitRange
from support.aws import FakeAws
from support.gates import SECONDS
from support.instance_metadata import InstanceMetadata, metadata_service
from support.processes import group_members

WORDS = ["tcp://10.0.0.5:2345", "--worker-manager-id", "ec2", "--aws-region", "us-east-1"]
INSTALLED = ["--image-id", "ami-12c6146b"]
UNITS = UnitRange("ec2", 1, 1)
FRESH = ["--python-version", "3.12", "--requirements-txt", "scaler==3.0.0\npandas"]


def options(*words: str) -> Ec2Options:
    return aws_ec2.COMMAND.read([*WORDS, *words], {})


@pytest.fixture
def provisioner(aws: FakeAws) -> Iterator[Ec2Provisioner]:
    made = Ec2Provisioner(options(*INSTALLED, "--instance-tags", "team=research"))
    yield made
    made.stop(list(made.list_units()), force=True)
    assert aws.instances() == []


def living(provisioner: Ec2Provisioner) -> set[str]:
    return {unit for unit, report in provisioner.list_units().items() if report.phase is not UnitPhase.ENDED}


def test_one_call_starts_instances_that_know_their_units(aws: FakeAws, provisioner: Ec2Provisioner) -> None:
    calls: list[dict[str, object]] = []
    provisioner._ec2.meta.events.register(
        "provide-client-params.ec2.RunInstances", lambda params, **_: calls.append(dict(params))
    )
    units = ("ec2-1a-7", "ec2-1a-8", "ec2-1a-9")
    assert provisioner.start(units, 0) == list(units)
    assert living(provisioner) == set(units)
    (call,) = calls
    assert (call["MinCount"], call["MaxCount"]) == (1, 3) and len(str(call["ClientToken"])) <= 64
    assert call["InstanceInitiatedShutdownBehavior"] == "terminate", "the default leaves it stopped, and paid for"
    assert "SCALER_UNIT_ID=ec2-1a-$((7 + index))" in str(call["UserData"])
    (reservation,) = aws.ec2.describe_instances(
        Filters=[{"Name": "tag:team", "Values": ["research"]}, {"Name": "instance-state-name", "Values": ["running"]}]
    )["Reservations"]
    assert sorted(each["AmiLaunchIndex"] for each in reservation["Instances"]) == [0, 1, 2]
    provisioner.stop(("ec2-1a-8", "unknown"), force=False)
    assert living(provisioner) == {"ec2-1a-7", "ec2-1a-9"}
    assert "User initiated" in provisioner.list_units()["ec2-1a-8"].reason


def test_another_life_finds_the_instances_of_its_fleet_only(provisioner: Ec2Provisioner) -> None:
    provisioner.start(("ec2-1b-1",), 0)
    assert living(Ec2Provisioner(options(*INSTALLED))) == {"ec2-1b-1"}
    other = Ec2Provisioner(options(*INSTALLED, "--worker-manager-id", "other"))
    assert living(other) == set()
    other.stop(("ec2-1b-1",), force=True)
    assert living(provisioner) == {"ec2-1b-1"}
    Ec2Provisioner(options(*INSTALLED)).stop(("ec2-1b-1",), force=False)
    assert living(provisioner) == set(), "it is stopped before the first listing"


@pytest.mark.usefixtures("aws")
def test_what_ec2_refuses_is_shown() -> None:
    refused = Ec2Provisioner(options(*INSTALLED, "--subnet-id", "subnet-nothing"))
    with pytest.raises(ProvisionerError, match=r"InvalidSubnetID.*subnet-nothing"):
        refused.start(("ec2-1c-1",), 0)


def test_an_instance_that_cannot_be_terminated_keeps_no_other(aws: FakeAws, provisioner: Ec2Provisioner) -> None:
    provisioner.start(("ec2-1d-1", "ec2-1d-2"), 0)
    protected = provisioner._ids["ec2-1d-1"]
    aws.ec2.modify_instance_attribute(InstanceId=protected, DisableApiTermination={"Value": True})
    try:
        with pytest.raises(ProvisionerError, match="disableApiTermination") as refused:
            provisioner.stop(("ec2-1d-1", "ec2-1d-2"), force=False)
        assert refused.value.accepted == [provisioner._ids["ec2-1d-2"]]
        assert living(provisioner) == {"ec2-1d-1"}
    finally:
        aws.ec2.modify_instance_attribute(InstanceId=protected, DisableApiTermination={"Value": False})


def test_without_an_image_the_newest_amazon_linux_is_started(aws: FakeAws) -> None:
    provisioner = Ec2Provisioner(options(*FRESH))
    provisioner.start(("ec2-1e-1",), 0)
    assert living(provisioner) == {"ec2-1e-1"}
    provisioner.stop(("ec2-1e-1",), force=False)


def test_requirements_are_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("scaler==3.0.0\npandas", "utf-8")
    scripts = {
        options(*FRESH).user_data(UNITS),
        options("--python-version", "3.12", "--requirements-txt", str(file)).user_data(UNITS),
    }
    (script,) = scripts
    assert "printf '%s\\n' 'scaler==3.0.0\npandas' > /opt/scaler.txt" in script
    assert "uv venv --python 3.12 /opt/scaler" in script


_AGENT = """#!/bin/bash
trap 'echo "$SCALER_UNIT_ID drains"; exit' TERM
echo "$SCALER_UNIT_ID works"
until [ -e ended ]; do read -t 0.05 <> pause; done
"""


@contextmanager
def instance(script: str, metadata: InstanceMetadata, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """An instance that runs a start script; its agent works until there is a file `ended`."""
    path = folder / "bin"
    path.mkdir()
    os.mkfifo(folder / "pause")
    programs = {
        "scaler_cluster": _AGENT,
        "shutdown": '#!/bin/sh\necho "shutdown $*"\n',
        "sleep": f'#!/bin/sh\n[ "$*" = 5 ] && exec {shutil.which("sleep")} 0.05\n',
    }
    for name, text in programs.items():
        (path / name).write_text(text, "utf-8")
        (path / name).chmod(0o755)
    process = subprocess.Popen(
        ["bash", "-c", script.replace("http://169.254.169.254", metadata.url)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            for pid in group_members(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def lines(process: subprocess.Popen[str], last: str) -> list[str]:
    """What the instance says, up to and with a line."""
    assert process.stdout is not None
    found = [""]
    while found[-1] != last:
        found.append(process.stdout.readline().rstrip("\n"))
        assert found[-1], found
    return found[1:]


def test_an_agent_drains_before_its_spot_instance_is_taken_away(tmp_path: Path) -> None:
    script = options(*INSTALLED, "--spot").user_data(UNITS)
    with metadata_service() as metadata, instance(script, metadata, tmp_path) as running:
        assert lines(running, "ec2-4 works")
        for _ in range(2):
            assert metadata.asked.acquire(timeout=SECONDS), "it is asked again and again"
        metadata.notice.set()
        notice = 'EC2 takes this instance away: {"action": "terminate"}'
        assert lines(running, "ec2-4 drains") == [notice, "ec2-4 drains"]
        assert lines(running, "shutdown -h now")


@pytest.mark.parametrize("words", [(), ("--spot",)])
def test_an_instance_ends_with_its_agent(tmp_path: Path, words: Sequence[str]) -> None:
    script = options(*INSTALLED, *words).user_data(UNITS)
    with metadata_service() as metadata, instance(script, metadata, tmp_path) as running:
        assert lines(running, "ec2-4 works")
        assert not words or metadata.asked.acquire(timeout=SECONDS)
        (tmp_path / "ended").touch()
        assert lines(running, "shutdown -h now") == ["shutdown -h now"]
        assert words or not metadata.asked.acquire(blocking=False), "only spot instances have notices"


def test_spot_instances_are_asked_for(aws: FakeAws, provisioner: Ec2Provisioner) -> None:
    calls: list[dict[str, object]] = []
    spot = Ec2Provisioner(options(*INSTALLED, "--spot"))
    for each in (provisioner, spot):
        each._ec2.meta.events.register(
            "provide-client-params.ec2.RunInstances", lambda params, **_: calls.append(dict(params))
        )
    provisioner.start(("ec2-1f-1",), 0)
    spot.start(("ec2-1f-2",), 0)
    assert [call.get("InstanceMarketOptions") for call in calls] == [None, {"MarketType": "spot"}]


def test_an_instance_that_is_taken_away_is_no_failure() -> None:
    ended = {"State": {"Name": "terminated"}}
    assert aws_ec2._report(ended).phase is UnitPhase.ENDED
    reason = {"Code": "Server.SpotInstanceTermination", "Message": "Server.SpotInstanceTermination: no capacity"}
    report = aws_ec2._report({**ended, "StateReason": reason})
    assert (report.phase, report.reason) == (UnitPhase.RECLAIMED, reason["Message"])


def test_a_start_script_that_is_too_long_is_refused_here() -> None:
    long = options(*FRESH[:3], "scaler\n" + "x" * 20_000)
    with pytest.raises(ProvisionerError, match="longer than 16384 bytes"):
        long.user_data(UNITS)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "missing --image-id"),
        (["--requirements-txt", "pandas"], "missing --image-id"),
        (["--python-version", "3.12", "--requirements-txt", "pandas"], "does not name scaler"),
        ([*INSTALLED, "--requirements-txt", "scaler"], "--requirements-txt needs --python-version"),
        (["--requirements-txt", "no/such/file.txt"], "no/such/file.txt: No such file or directory"),
        ([*INSTALLED, "--instance-tags", "team"], "'team' is not name=value"),
        ([*INSTALLED, "--network-backend", "zmq"], "there is one transport"),
    ],
)
def test_errors_name_the_remedy(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(*words)
    assert fault in capsys.readouterr().err
