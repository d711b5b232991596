"""Units that are processes of this host."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler_io.provisioning.provisioner import UnitPhase, UnitReport
from scaler_worker.config import COMMAND as CLUSTER
from scaler_worker.managers import native
from scaler_worker.managers.native import NativeProvisioner, cluster_command
from support.waiting import wait_until

NOBODY = "ipc:///nowhere/at/all"


@pytest.fixture
def provisioner() -> Iterator[NativeProvisioner]:
    options = native.COMMAND.read([NOBODY, "--worker-manager-id", "grid"], {})
    made = NativeProvisioner(lambda unit: cluster_command(options, unit, os.getpid()))
    yield made
    made.stop(list(made.list_units()), force=True)
    wait_until(lambda: not made.list_units())


def test_a_fixed_number_of_workers_is_one_agent_with_the_options_and_the_parent_of_the_manager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["--worker-manager-id", "grid", "--mode", "fixed", "-mtc", "3", "-lp", "-", "a.log", "-lf", "json"]
    run: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda program, arguments, environment: run.append(arguments))
    monkeypatch.setattr(native, "run_manager", lambda *arguments: 0)
    native.run(native.COMMAND.read([NOBODY, *words, "--parent-pid", "7"], {}))
    agent = CLUSTER.read(run[0][run[0].index(NOBODY) :], {})
    assert (agent.num_of_workers, agent.worker_manager_id, agent.parent_pid) == (3, "", 7)
    assert (agent.logging_paths, agent.log_format) == (("-", "a.log"), "json")
    native.run(native.COMMAND.read([NOBODY, *words], {}))
    assert "--parent-pid" not in run[1]


def test_the_cause_of_a_failure_is_the_reason_wherever_the_unit_logs(tmp_path: Path) -> None:
    words = ["--worker-manager-id", "grid", "--preload", "os:getpidd", "-lp", str(tmp_path / "log")]
    options = native.COMMAND.read([NOBODY, *words], {})
    provisioner = NativeProvisioner(lambda unit: cluster_command(options, unit, os.getpid()))
    provisioner.start(("a",), 0)
    reasons: list[str] = []

    def has_ended() -> bool:
        reasons.extend(report.reason for report in provisioner.list_units().values() if report.reason)
        return bool(reasons)

    wait_until(has_ended)
    cause = "AttributeError: module 'os' has no attribute 'getpidd'"
    assert reasons == [f"exit code 1: scaler_cluster: preload os:getpidd failed: {cause}"]


def test_units_run_until_they_are_stopped(provisioner: NativeProvisioner) -> None:
    assert provisioner.start(("a", "b"), 0) == ("a", "b")
    assert {unit: report.phase for unit, report in provisioner.list_units().items()} == {
        "a": UnitPhase.RUNNING,
        "b": UnitPhase.RUNNING,
    }
    provisioner.stop(("a", "unknown"), force=True)
    wait_until(lambda: provisioner.list_units().keys() == {"b"})


def test_the_end_of_a_unit_is_reported_once_with_its_reason(provisioner: NativeProvisioner) -> None:
    provisioner.start(("a",), 0)
    os.kill(provisioner._units["a"].process.pid, signal.SIGKILL)
    ended: list[UnitReport] = []

    def has_ended() -> bool:
        ended.extend(report for report in provisioner.list_units().values() if report.phase is UnitPhase.ENDED)
        return bool(ended)

    wait_until(has_ended)
    assert [report.reason for report in ended] == ["signal 9"] and not provisioner.list_units()


@pytest.mark.parametrize("stream", ["out", "err"])
def test_the_last_lines_are_passed_on_and_are_part_of_the_reason(
    stream: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = f"import sys; sys.std{stream}.write('first\\n' * 2000 + 'the cause\\nthe remedy\\n'); sys.exit(3)"
    provisioner = NativeProvisioner(lambda unit: [sys.executable, "-c", script])
    provisioner.start(("a",), 0)
    reasons: list[str] = []

    def has_ended() -> bool:
        reasons.extend(report.reason for report in provisioner.list_units().values() if report.reason)
        return bool(reasons)

    wait_until(has_ended)
    assert reasons == ["exit code 3: first / the cause / the remedy"]
    written = capfd.readouterr()._asdict()
    assert written.pop(stream) == "first\n" * 2000 + "the cause\nthe remedy\n"
    assert list(written.values()) == [""]
