"""A Slurm cluster of one node on this host, with its own daemons, key and state; it is ended by process id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes import Watched, descendants, free_ports
from support.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/node
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
MinJobAge=30
KillWait=5
MaxArraySize=3
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=debug Nodes=node Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


class SlurmCluster:
    """Commands of the cluster; they and their children find it by SLURM_CONF."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the daemons and wait until the node takes jobs."""
        port = free_ports(2)
        text = CONFIGURATION.format(
            folder=self.folder, host=socket.gethostname(), port=port, node_port=port + 1, cpus=os.cpu_count()
        )
        (self.folder / "slurm.conf").write_text(text, "utf-8")
        for name in ("state", "node"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self._start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.sock",
            f"--log-file={self.folder}/munged.log", f"--pid-file={self.folder}/munged.pid",
            f"--seed-file={self.folder}/munge.seed",
        )  # fmt: skip
        wait_until((self.folder / "munge.sock").exists, "munged")
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D", "-N", "node")
        wait_until(lambda: self.command("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "1", self._logs, 30)

    def _start(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.out").open("wb") as output:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._daemons.append(process)

    @property
    def _logs(self) -> str:
        return "a node that is idle: " + "".join(
            path.read_text("utf-8", "replace") for path in self.folder.glob("*.log")
        )

    def command(self, *words: str) -> str:
        """The output of a command of Slurm; empty if it fails."""
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8").stdout

    def jobs(self, *states: str) -> list[str]:
        """The ids of the array tasks in these states."""
        return self.command("squeue", "-h", "-r", "-o", "%i", "-t", ",".join(states)).split()

    def close(self) -> None:
        """End all jobs and the daemons."""
        self.command("scancel", "--user=root")
        wait_until(lambda: not self.jobs("PENDING", "RUNNING", "COMPLETING"), "the end of all jobs")
        with Watched(pid for daemon in self._daemons for pid in (daemon.pid, *descendants(daemon.pid))) as watched:
            for daemon in reversed(self._daemons):
                daemon.terminate()
            watched.wait_gone(10)
        for daemon in self._daemons:
            daemon.wait()


def reason_against_slurm() -> str:
    """Why Slurm cannot run here; empty if it can."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"Slurm is not installed here: no {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    return "" if os.geteuid() == 0 else "Slurm's daemons need root"


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[SlurmCluster]:
    """A cluster that the environment of this process names; the test is skipped where there is no Slurm."""
    if reason := reason_against_slurm():
        pytest.skip(reason)
    made = SlurmCluster(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        try:
            made.start()
            yield made
        finally:
            made.close()
