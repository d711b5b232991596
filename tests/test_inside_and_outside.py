"""A cluster behind network address translation: services are told by the addresses that the outside reaches them by."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.gates import SECONDS
from support.networks import Host, two_hosts
from support.waiting import wait_until

INSIDE, OUTSIDE, FIRST = "172.20.0.1", "10.77.0.1", 7000


def translate(host: Host) -> None:
    """Ports of the outside lead to services that listen on an inner address, and nothing else does."""
    host.ip("addr", "add", f"{INSIDE}/32", "dev", "lo")
    for offset in range(3):
        target = f"{INSIDE}:{2345 + offset}"
        words = ("-t", "nat", "-A", "PREROUTING", "-p", "tcp", "-d", OUTSIDE, "--dport", str(FIRST + offset))
        done = host.run("iptables", *words, "-j", "DNAT", "--to-destination", target)
        if done.returncode:
            pytest.skip(f"addresses cannot be translated here: {done.stderr.strip()}")


@pytest.mark.skipif(shutil.which("iptables") is None, reason="address translation needs the program iptables")
def test_clients_and_workers_outside_are_told_outside_addresses(tmp_path: Path) -> None:
    with two_hosts() as (near, far, _):
        translate(near)
        logs = {name: tmp_path / f"{name}.log" for name in ("scheduler", "manager", "client")}
        scheduler = near.start(
            logs["scheduler"], "-m", "scaler_scheduler", f"tcp://{INSIDE}:2345", "--insecure",
            "--advertised-object-storage-address", f"tcp://{OUTSIDE}:{FIRST + 1}",
        )  # fmt: skip
        wait_until(lambda: "listen to object storage" in logs["scheduler"].read_text("utf-8"), "a scheduler")
        # The manager is beside the scheduler, its workers reach it from outside: so do all that it starts elsewhere.
        outside = f"tcp://{OUTSIDE}:{FIRST}"
        manager = far.start(
            logs["manager"], "-m", "scaler_worker.managers.main", "baremetal_native", outside, "-wmi", "grid",
            "-mtc", "2", "--worker-scheduler-address", outside,
        )  # fmt: skip
        script = tmp_path / "client.py"
        script.write_text(
            f"""
from scaler import Client
from scaler_protocol.addresses import Address
from scaler_ui.listening import Listening
with Client({outside!r}) as client:
    assert len(client.submit(bytes, 5_000_000).result()) == 5_000_000
    listening = Listening(Address.parse("tcp://{OUTSIDE}:{FIRST + 2}"))
    listening.wait_for(lambda model: model.status is not None and model.status.managers, 20)
    print(*listening.model.status.managers)
    listening.close()
""",
            "utf-8",
        )
        client = far.start(logs["client"], str(script))
        client.communicate(timeout=3 * SECONDS)
        assert client.returncode == 0, logs["client"].read_text("utf-8")
        assert logs["client"].read_text("utf-8") == "grid\n"
        for process in (manager, scheduler):
            process.terminate()
            process.communicate(timeout=SECONDS)
        assert not any("Traceback" in log.read_text("utf-8") for log in logs.values())
