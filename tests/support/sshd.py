"""An sshd on loopback with keys of its own, and a configuration of ssh in which it is several hosts."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes import free_ports, taken_port
from support.waiting import wait_until

CONFIGURATION = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
CLIENT = """
Host one two
  HostName 127.0.0.1
  Port {port}
Host away
  HostName 127.0.0.1
  Port {closed_port}
Host *
  User {user}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  HostKeyAlias host
"""


class Sshd:
    """Hosts `one` and `two`, which are this host, and `away`, which does not answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(2)
        self.client_configuration = folder / "ssh_config"
        self._write()
        self.process = self._start()

    def _write(self) -> None:
        for name in ("host_key", "user_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        key = (self.folder / "host_key.pub").read_text("utf-8")
        (self.folder / "known_hosts").write_text(f"host {key}", "utf-8")
        (self.folder / "sshd_config").write_text(CONFIGURATION.format(folder=self.folder, port=self.port), "utf-8")
        self.client_configuration.write_text(
            CLIENT.format(folder=self.folder, port=self.port, closed_port=self.port + 1, user=getpass.getuser()),
            "utf-8",
        )

    def _start(self) -> subprocess.Popen[bytes]:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd needs it for the separation of privileges
        words = [shutil.which("sshd") or "sshd", "-D", "-f", str(self.folder / "sshd_config")]
        with (self.folder / "sshd.log").open("ab") as log:
            process = subprocess.Popen([*words, "-e"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(lambda: taken_port([self.port]) or process.poll() is not None, "sshd")
        assert process.poll() is None, (self.folder / "sshd.log").read_text("utf-8")
        return process

    def stop(self) -> None:
        """Stop answering."""
        self.process.terminate()
        self.process.wait()

    def restart(self) -> None:
        """Answer again."""
        self.process = self._start()


@contextmanager
def running_sshd(folder: Path) -> Iterator[Sshd]:
    """An sshd; the test is skipped where there is none."""
    missing = [name for name in ("sshd", "ssh", "ssh-keygen") if not shutil.which(name)]
    if missing:
        pytest.skip(f"there is no {', '.join(missing)} here (Debian: openssh-server openssh-client)")
    made = Sshd(folder)
    try:
        yield made
    finally:
        made.stop()
