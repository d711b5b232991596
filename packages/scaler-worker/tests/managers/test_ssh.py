"""Units on hosts that ssh reaches: hosts and scripts everywhere, logins where there is an sshd."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from scaler_io.provisioning.provisioner import ProvisionerError, UnitPhase, UnitReport
from scaler_worker.managers import ssh
from scaler_worker.managers.ssh import (
    Host,
    SshOptions,
    SshProvisioner,
    list_script,
    read_hosts,
    read_list,
    start_script,
    stop_script,
)
from support.sshd import Sshd, running_sshd
from support.waiting import wait_until

WORDS = ["tcp://head:2345", "--worker-manager-id", "lab"]
WAIT = """sh -c 'trap "echo drained; exit 0" TERM; echo "up $SCALER_UNIT_ID"; while :; do sleep 0.1; done'"""
RUNNING = UnitReport(UnitPhase.RUNNING)


def options(*words: str) -> SshOptions:
    return ssh.COMMAND.parse([*WORDS, *words], {})


def test_hosts_are_read_from_the_command_line_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# the lab\nuser@c:8  # the big one\n\n[::1]:4\n", "utf-8")
    given = options("--hosts", "a,b:6", "--hosts-file", str(file), "-wpu", "2")
    assert read_hosts(given) == [Host("a", 1), Host("b", 3), Host("user@c", 4), Host("::1", 2)]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ([], "no hosts: give --hosts or --hosts-file"),
        (["--hosts", "a,a:2"], "host a is given twice"),
        (["--hosts=-oProxyCommand=x"], "'-oProxyCommand=x' is not a host"),
        (["--hosts", "a:0"], "'a:0' is not a host"),
        (["--hosts", "a b"], "'a b' is not a host"),
        (["--hosts", "a:3", "-wpu", "2"], "host a:3: 3 workers are not a multiple of --workers-per-unit 2"),
        (["--hosts-file", "/no/such"], "--hosts-file /no/such: No such file"),
        (["--hosts", "a,,b"], "has an empty item"),
    ],
)
def test_errors_name_value_and_remedy(words: list[str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_hosts(options(*words))


def sh(script: str) -> str:
    done = subprocess.run(["sh", "-s"], input=script, capture_output=True, encoding="utf-8", check=True)
    assert done.stderr == ""
    return done.stdout


def test_scripts_start_list_and_stop_units(tmp_path: Path) -> None:
    given = options("--remote-directory", str(tmp_path), "--worker-command", WAIT, "--setup", "echo set up")
    assert sh(list_script(given, "a")) == ""
    sh(start_script(given, "a", ("lab-1", "lab-2")))
    first = sh(list_script(given, "a"))
    sh(start_script(given, "a", ("lab-1",)))
    assert read_list(first) == {"lab-1": RUNNING, "lab-2": RUNNING}, "asked for twice, started once"
    assert len(list(tmp_path.glob("**/*.pid"))) == 2 and sh(list_script(given, "b")) == ""
    log = next(tmp_path.glob("**/lab-1.log"))
    wait_until(lambda: log.read_text() == "set up\nup lab-1\n", "a unit that is up")
    sh(stop_script(given, "a", ("lab-1", "unknown"), force=False))
    found: dict[str, UnitReport] = {}
    wait_until(lambda: found.update(read_list(sh(list_script(given, "a")))) or found["lab-1"] != RUNNING, "its end")
    assert found["lab-1"] == UnitReport(UnitPhase.ENDED, "its last lines: set up; up lab-1; drained")
    assert read_list(sh(list_script(given, "a"))) == {"lab-2": RUNNING}, "its end is told once"
    sh(stop_script(given, "a", ("lab-2",), force=True))
    wait_until(lambda: "lab-2" not in read_list(sh(list_script(given, "a"))), "the other one's end")


def test_another_process_with_the_id_of_a_unit_is_not_that_unit(tmp_path: Path) -> None:
    given = options("--remote-directory", str(tmp_path))
    folder = Path(given.remote_folder("a"))
    folder.mkdir(parents=True)
    (folder / "lab-1.pid").write_text(f"{os.getpid()} 1\n", "utf-8")
    sh(stop_script(given, "a", ("lab-1",), force=True))
    assert read_list(sh(list_script(given, "a"))) == {"lab-1": UnitReport(UnitPhase.ENDED, "its last lines: none")}


def test_a_setup_that_fails_is_told(tmp_path: Path) -> None:
    given = options("--remote-directory", str(tmp_path), "--setup", "echo no module; false")
    sh(start_script(given, "a", ("lab-1",)))
    found: dict[str, UnitReport] = {}
    wait_until(lambda: found.update(read_list(sh(list_script(given, "a")))) or found["lab-1"] != RUNNING, "its end")
    assert found["lab-1"].reason == "its last lines: no module"


def test_no_agent_is_left_whose_process_id_cannot_be_written(tmp_path: Path) -> None:
    given = options(
        "--remote-directory", str(tmp_path), "--worker-command", WAIT, "--setup", f"echo $$ >{tmp_path}/began"
    )
    (Path(given.remote_folder("a")) / "lab-1.new").mkdir(parents=True)
    done = subprocess.run(
        ["sh", "-s"], input=start_script(given, "a", ("lab-1",)), capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 1 and f"cannot write {given.remote_folder('a')}/lab-1.pid" in done.stderr
    wait_until(lambda: not agents_of("lab-1"), "no agent")
    assert sh(list_script(given, "a")) == ""


def agents_of(unit: str) -> list[int]:
    """Processes that have the name of this unit in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SCALER_UNIT_ID") == unit and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def test_what_start_files_of_a_shell_print_is_ignored() -> None:
    assert read_list("Welcome to a\nup lab-1\n") == {"lab-1": RUNNING}


# --- with sshd --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as started:
        yield started


def provisioner_of(sshd: Sshd, folder: Path, hosts: str) -> SshProvisioner:
    given = options(
        "--hosts", hosts, "--ssh-arguments", f"-F {sshd.client_configuration}",
        "--remote-directory", str(folder), "--worker-command", WAIT,
    )  # fmt: skip
    return SshProvisioner(given, read_hosts(given))


def living(units: Mapping[str, UnitReport]) -> set[str]:
    return {unit for unit, report in units.items() if not report.phase.has_ended}


def test_units_go_where_there_is_room_and_are_found_again(sshd: Sshd, tmp_path: Path) -> None:
    provisioner = provisioner_of(sshd, tmp_path, "one:2,two")
    assert provisioner.list_units() == {}
    units = ("lab-1", "lab-2", "lab-3")
    assert provisioner.start(units, 0) == units
    assert sorted(path.parent.name for path in tmp_path.glob("**/*.pid")) == ["one", "one", "two"]
    with pytest.raises(ProvisionerError, match="all hosts are full"):
        provisioner.start(("lab-4",), 0)

    provisioner = provisioner_of(sshd, tmp_path, "one:2,two")  # another life of the manager
    assert provisioner.list_units() == dict.fromkeys(units, RUNNING)
    wait_until(lambda: len([p for p in tmp_path.glob("**/*.log") if "up" in p.read_text()]) == 3, "three shells")
    pid = int(next(tmp_path.glob("**/lab-3.pid")).read_text().split()[0])
    assert os.getsid(pid) == pid, "a session of its own"
    os.kill(pid, signal.SIGKILL)
    provisioner.stop(("lab-1", "unknown"), force=False)
    wait_until(lambda: living(provisioner.list_units()) == {"lab-2"}, "the end of two")
    provisioner.stop(("lab-2",), force=True)
    wait_until(lambda: not living(provisioner.list_units()), "the end of all")


def test_a_host_that_is_away_is_passed_over(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provisioner = provisioner_of(sshd, tmp_path, "away:9,one")
    assert provisioner.list_units() == {}
    with pytest.raises(ProvisionerError, match=r"host away: .*Connection refused") as failed:
        provisioner.start(("lab-1", "lab-2"), 0)
    assert failed.value.accepted == ["lab-1"]
    sshd.stop()
    try:
        with pytest.raises(ProvisionerError, match=r"host one: .*Connection refused"):
            provisioner.stop(("lab-1",), force=False)
        assert provisioner.list_units() == {"lab-1": RUNNING}, "what is not known has not ended"
    finally:
        sshd.restart()
    later = time.monotonic() + ssh.RETRY_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert provisioner.list_units() == {"lab-1": RUNNING}
    provisioner.stop(("lab-1",), force=True)
    monkeypatch.undo()
    wait_until(lambda: not living(provisioner.list_units()), "its end")
