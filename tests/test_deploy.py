"""The files of deploy/ are well formed, and every command in them is one that its program accepts."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaler_io.provisioning.core import EXIT_SECONDS
from scaler_io.service.cli import Command
from scaler_scheduler.service.options import COMMAND as SCHEDULER
from scaler_storage.options import COMMAND as STORAGE
from scaler_ui.web.app import COMMAND as UI
from scaler_worker.config import COMMAND as CLUSTER
from scaler_worker.managers.main import kind_named
from support.processes import PROGRAMS

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
INSTALLED = "/opt/scaler/bin/"
COMMANDS: Mapping[str, Command[Any]] = {command.program: command for command in (SCHEDULER, STORAGE, CLUSTER, UI)}


def documents(name: str) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text("utf-8")))


def unit_file(path: Path) -> configparser.ConfigParser:
    """A unit of systemd."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(path, "utf-8")
    return parser


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command line of the files, with its place."""
    for document in documents("kubernetes.yaml"):
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                yield f"kubernetes.yaml {container['name']}", container["command"]
    for name, service in documents("compose.yaml")[0]["services"].items():
        yield f"compose.yaml {name}", service["command"]
    for path in UNITS:
        line = unit_file(path)["Service"]["ExecStart"].replace("%l", "host")
        yield path.name, shlex.split(line.removeprefix(INSTALLED))
    for line in (DEPLOY / "Containerfile").read_text("utf-8").splitlines():
        if line.startswith("CMD "):
            yield "Containerfile", yaml.safe_load(line.removeprefix("CMD "))


@pytest.mark.parametrize(
    ("place", "words"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_commands_exist_and_are_accepted(place: str, words: list[str]) -> None:
    program, *rest = words
    assert (PROGRAMS / program).exists(), place
    assert all(isinstance(word, str) for word in words), f"{place}: containers need texts, so quote numbers"
    command = COMMANDS.get(program)
    if program == "scaler_worker_manager":
        command = kind_named(rest.pop(0)).COMMAND
    assert command is not None, place
    parsed = command.parse(rest, {})
    if program in ("scaler_scheduler", "scaler_object_storage_server"):
        assert parsed.insecure or parsed.address.is_local, f"{place}: it would refuse to listen"


def test_the_role_of_the_manifest_is_what_the_manager_asks_for() -> None:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for document in documents("kubernetes.yaml"):
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "scaler"
        by_kind.setdefault(document["kind"], []).append(document)
    assert by_kind["Role"][0]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "list"]}
    ]
    accounts = {account["metadata"]["name"] for account in by_kind["ServiceAccount"]}
    pods = {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in by_kind["Deployment"]}
    assert accounts == {"worker-manager"} == {pods["worker-manager"]["serviceAccountName"]}
    services = {service["metadata"]["name"] for service in by_kind["Service"]}
    assert services == {"scheduler", "object-storage"} and services <= pods.keys()


def test_managers_may_take_as_long_as_they_need_to_end() -> None:
    # Units are stopped by force EXIT_SECONDS after they should have drained, and given up as long after that.
    service = unit_file(DEPLOY / "systemd" / "scaler-worker-manager.service")["Service"]
    _, kind, *words = shlex.split(service["ExecStart"].replace("%l", "host"))
    drain = kind_named(kind).COMMAND.parse(words, {}).drain_timeout_seconds
    assert int(service["TimeoutStopSec"]) > drain + 2 * EXIT_SECONDS
    for document in documents("kubernetes.yaml"):
        if document["kind"] == "Deployment" and document["metadata"]["name"] == "worker-manager":
            pod = document["spec"]["template"]["spec"]
            _, kind, *words = pod["containers"][0]["command"]
            drain = kind_named(kind).COMMAND.parse(words, {}).drain_timeout_seconds
            assert pod["terminationGracePeriodSeconds"] > drain + 2 * EXIT_SECONDS


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for each in UNITS:  # units name each other
        (tmp_path / each.name).write_text(each.read_text("utf-8").replace(INSTALLED, f"{PROGRAMS}/"), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / path.name], capture_output=True, encoding="utf-8", timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_dies_is_started_again_however_often() -> None:
    for path in UNITS:
        unit = unit_file(path)
        assert unit["Unit"]["StartLimitIntervalSec"] == "0" and unit["Service"]["Restart"] == "on-failure", path
    assert {each["restart"] for each in documents("compose.yaml")[0]["services"].values()} == {"on-failure"}


def test_tasks_cannot_read_the_key_of_services() -> None:
    units = {path.stem: unit_file(path)["Service"] for path in UNITS}
    workers = units.pop("scaler-worker-manager")
    for field in ("User", "Environment"):
        assert workers[field] not in {unit[field] for unit in units.values()}
