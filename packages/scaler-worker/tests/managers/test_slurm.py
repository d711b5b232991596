"""Units that are jobs of Slurm: commands and texts everywhere, jobs where a Slurm is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from scaler_io.provisioning.provisioner import ProvisionerError, UnitPhase, UnitReport
from scaler_worker.managers import slurm
from scaler_worker.managers.slurm import (
    ArrayTask,
    SlurmOptions,
    SlurmProvisioner,
    batch_script,
    phase_of,
    read_queue,
    sbatch_words,
)
from scaler_worker.managers.unit_ranges import UnitRange
from support.slurm import SlurmCluster, slurm_cluster
from support.waiting import wait_until

WORDS = ["tcp://head:2345", "--worker-manager-id", "grid", "-mtc", "100"]
SHOW = f"""{sys.executable} -c 'import os, sys; print(os.environ["SCALER_UNIT_ID"], *sys.argv[1:])'"""
WAIT = """sh -c 'trap "echo drained; exit 0" TERM; echo up; while :; do sleep 0.1; done'"""


def options(*words: str) -> SlurmOptions:
    return slurm.COMMAND.parse([*WORDS, *words], {})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("2-12", 216_000),
        ("1-2:30", 95_400),
        ("1-2:30:15", 95_415),
    ],
)
def test_times_are_read_as_slurm_reads_them(text: str, seconds: int) -> None:
    assert options("--time-limit", text).time_limit == seconds
    minutes, rest = divmod(seconds, 60)
    assert f"--time={minutes}:{rest:02d}" in sbatch_words(options("--time-limit", text), UnitRange("grid-a", 1, 1))


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--time-limit", "soon"], "'soon' is not a time"),
        (["--time-limit", "0"], "'0' is no time at all"),
        (["--time-limit", "0:30"], "--time-limit of 30 s leaves no time to work: a unit begins to drain 35 s before"),
        (["--memory-per-worker", "much"], "'much' is not an amount of memory"),
        (["--cpus-per-worker", "0"], "0 is less than 1"),
        (["--sbatch-arguments='"], "no closing quotation"),
        (["--workers-per-unit", "200"], "--workers-per-unit 200 is more than --max-task-concurrency 100"),
    ],
)
def test_errors_name_value_and_remedy(words: list[str], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        options(*words)


def test_sbatch_is_told_what_a_unit_needs(tmp_path: Path) -> None:
    given = options(
        "-wpu", "4", "--partition", "long", "--account", "a", "--qos", "q", "--cpus-per-worker", "2",
        "--memory-per-worker", "3g", "--sbatch-arguments=--constraint='x y' --exclusive",
        "--log-directory", str(tmp_path / "100%"), "-drt", "40",
    )  # fmt: skip
    assert sbatch_words(given, UnitRange("grid-a", 17, 20)) == [
        "sbatch", "--parsable", "--job-name=scaler-grid", "--comment=scaler grid-a-17 for tcp://head:2345",
        "--array=0-19", f"--output={tmp_path}/100%%/%x-%A_%a.log", "--no-requeue", "--nodes=1", "--ntasks=1",
        "--cpus-per-task=8", "--partition=long", "--account=a", "--qos=q", "--signal=B:TERM@50", "--mem=12G",
        "--constraint=x y", "--exclusive",
    ]  # fmt: skip
    assert "--mem=500M" in sbatch_words(options("--memory-per-worker", "500"), UnitRange("grid-a", 1, 1))


def run_script(given: SlurmOptions, index: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash"],
        input=batch_script(given, UnitRange("grid-a", 17, 4)),
        env={**os.environ, "SLURM_ARRAY_TASK_ID": str(index)},
        capture_output=True,
        encoding="utf-8",
    )


def test_the_script_of_a_job_becomes_the_agent_of_its_unit() -> None:
    done = run_script(options("-wpu", "4", "--worker-command", SHOW, "--setup", "greeting=hello\necho $greeting"), 3)
    assert (done.stdout, done.stderr) == ("hello\ngrid-a-20 tcp://head:2345 --num-of-workers 4\n", "")


def _seconds(number: int) -> str:
    """A setup after which the shell has run for so long, for ever: an unset SECONDS is an ordinary variable."""
    return f"unset SECONDS; SECONDS={number}"


def test_an_agent_knows_when_slurm_ends_its_job() -> None:
    given = options("--worker-command", SHOW, "--time-limit", "2", "--setup", _seconds(30))
    assert run_script(given, 0).stdout == "grid-a-17 tcp://head:2345 --num-of-workers 1 --time-limit-seconds 88\n"
    assert not any(word.startswith("--signal") for word in sbatch_words(given, UnitRange("grid-a", 1, 1)))


@pytest.mark.parametrize(("limit", "seconds"), [("2", 118), ("14-00:00:00", 14 * 86400 - 2)])
def test_a_long_time_limit_is_a_whole_number_of_seconds(limit: str, seconds: int) -> None:
    given = options("--worker-command", SHOW, "--time-limit", limit, "--setup", _seconds(0))
    assert run_script(given, 0).stdout.endswith(f" --time-limit-seconds {seconds}\n")


def test_a_setup_that_fails_starts_no_agent() -> None:
    done = run_script(options("--worker-command", SHOW, "--setup", "false"), 0)
    assert (done.returncode, done.stdout) == (1, "")


QUEUE = """\
17_0|17|0|RUNNING|None|scaler grid-a-5 for tcp://head:2345
17_1|17|1|PENDING|Resources|scaler grid-a-5 for tcp://head:2345
18|18|N/A|CANCELLED|None|scaler grid-a-9 for tcp://head:2345
19_0|19|0|RUNNING|None|scaler grid-a-5 for tcp://another:2345
20_0|20|0|RUNNING|None|(null)
"""


def test_a_listing_shows_the_units_of_this_manager_and_scheduler() -> None:
    assert read_queue(QUEUE, options()) == {
        "grid-a-5": ArrayTask("17_0", "RUNNING", "None", "scaler-grid-17_0.log"),
        "grid-a-6": ArrayTask("17_1", "PENDING", "Resources", "scaler-grid-17_1.log"),
    }
    assert read_queue("", options()) == {}


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", UnitPhase.STARTING),
        ("CONFIGURING", UnitPhase.STARTING),
        ("RUNNING", UnitPhase.RUNNING),
        ("COMPLETING", UnitPhase.RUNNING),
        ("TIMEOUT", UnitPhase.ENDED),
        ("PREEMPTED", UnitPhase.RECLAIMED),
        ("NODE_FAIL", UnitPhase.RECLAIMED),
        ("A_STATE_OF_NEXT_YEAR", UnitPhase.RUNNING),
    ],
)
def test_states_have_living(state: str, phase: UnitPhase) -> None:
    assert phase_of(state) is phase


Commands = Callable[..., None]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Makes programs that stand in front of those of this host."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(**scripts: str) -> None:
        for name, script in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
            (tmp_path / name).chmod(0o755)

    return make


def test_a_start_that_fails_half_way_names_what_was_accepted(commands: Commands, tmp_path: Path) -> None:
    commands(
        scontrol="echo 'MaxArraySize            = 2'",
        sbatch=f"test -e {tmp_path}/once && echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2 && exit 1\n"
        f"touch {tmp_path}/once; echo '17;cluster'",
    )
    provisioner = SlurmProvisioner(options("--log-directory", str(tmp_path / "logs")))
    with pytest.raises(ProvisionerError, match="QOSMaxSubmitJobPerUserLimit") as failed:
        provisioner.start(("grid-a-1", "grid-a-2", "grid-a-3"), 0)
    assert list(failed.value.accepted) == ["grid-a-1", "grid-a-2"]
    assert provisioner.start(("grid-a-1", "grid-a-2"), 0), "asked for twice, submitted once"


def test_jobs_that_ended_meanwhile_are_no_error_of_a_stop(commands: Commands, tmp_path: Path) -> None:
    commands(
        squeue="echo '17_0|17|0|RUNNING|None|scaler grid-a-5 for tcp://head:2345'",
        scancel="echo 'scancel: error: Kill job error on job id 17_0: Invalid job id specified' >&2; exit 1",
    )
    provisioner = SlurmProvisioner(options())
    assert provisioner.list_units() == {"grid-a-5": UnitReport(UnitPhase.RUNNING)}
    provisioner.stop(("grid-a-5", "unknown"), force=False)
    commands(scancel="echo 'scancel: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ProvisionerError, match="Unable to contact slurm controller"):
        provisioner.stop(("grid-a-5",), force=True)


def test_a_listing_that_fails_is_not_an_empty_one(commands: Commands) -> None:
    commands(squeue="echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(ProvisionerError, match="Unable to contact slurm controller"):
        SlurmProvisioner(options()).list_units()


# --- with Slurm -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


def living(units: Mapping[str, UnitReport]) -> dict[str, UnitPhase]:
    return {unit: report.phase for unit, report in units.items() if not report.phase.has_ended}


def test_jobs_are_started_found_again_and_stopped(cluster: SlurmCluster, tmp_path: Path) -> None:
    given = options("--worker-command", WAIT, "--log-directory", str(tmp_path))
    provisioner = SlurmProvisioner(given)
    assert provisioner.list_units() == {}
    units = tuple(f"grid-a-{number}" for number in range(1, 5))
    assert provisioner.start(units, 0) == units
    assert len(set(cluster.command("squeue", "-h", "-o", "%F").split())) == 2, "MaxArraySize is 3"

    provisioner = SlurmProvisioner(given)  # another life of the manager
    wait_until(lambda: living(provisioner.list_units()) == dict.fromkeys(units, UnitPhase.RUNNING), "four jobs")
    wait_until(lambda: sum("up" in path.read_text() for path in tmp_path.glob("*.log")) == 4, "four shells")
    provisioner.stop(units[:1], force=False)
    found: dict[str, UnitReport] = {}
    wait_until(lambda: found.update(provisioner.list_units()) or found[units[0]].phase is UnitPhase.ENDED, "its end")
    assert "COMPLETED; last lines of" in found[units[0]].reason and "drained" in found[units[0]].reason
    assert units[0] not in provisioner.list_units(), "it is reported once"
    provisioner.stop(units, force=True)
    wait_until(lambda: not living(provisioner.list_units()), "the end of all jobs")
    assert provisioner.list_units() == {}, "the ends were reported before"


def test_jobs_that_wait_are_cancelled(cluster: SlurmCluster, tmp_path: Path) -> None:
    provisioner = SlurmProvisioner(options("--log-directory", str(tmp_path), "--sbatch-arguments=--begin=now+1hour"))
    provisioner.start(("grid-b-1", "grid-b-2"), 0)
    assert living(provisioner.list_units()) == dict.fromkeys(("grid-b-1", "grid-b-2"), UnitPhase.STARTING)
    provisioner.stop(("grid-b-1",), force=False)
    wait_until(lambda: living(provisioner.list_units()) == {"grid-b-2": UnitPhase.STARTING})
    provisioner.stop(("grid-b-2",), force=False)
    wait_until(lambda: provisioner.list_units() == {})


def test_a_refused_job_is_told_in_the_words_of_sbatch(cluster: SlurmCluster, tmp_path: Path) -> None:
    provisioner = SlurmProvisioner(options("--log-directory", str(tmp_path), "--partition", "gpu"))
    with pytest.raises(ProvisionerError, match="invalid partition specified: gpu"):
        provisioner.start(("grid-c-1",), 0)


def test_the_death_of_an_agent_is_the_end_of_its_job(cluster: SlurmCluster, tmp_path: Path) -> None:
    agent = f"{sys.executable} -c 'import os, signal; os.kill(os.getpid(), signal.SIGKILL)'"
    provisioner = SlurmProvisioner(options("--worker-command", agent, "--log-directory", str(tmp_path)))
    provisioner.start(("grid-d-1",), 0)
    found: dict[str, UnitReport] = {}
    wait_until(lambda: found.update(provisioner.list_units()) or "FAILED" in found["grid-d-1"].reason, "its failure")
    assert found["grid-d-1"].phase is UnitPhase.ENDED
