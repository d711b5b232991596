"""A cluster with keys under attack: with a client's key each attack fails and other clients notice nothing, and
without a key there is nothing but a closed door."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from attacker.attacks import ATTACKS
from scaler import Client
from scaler_io.security.key_files import add_key, make_keys
from scaler_io.security.keyring import KeyRole
from scaler_io.transport.curve import new_pair
from support.faults import TESTS, Services
from support.gates import Gate, wait_at
from support.waiting import wait_until

SIZE, SECONDS = 3_000_000, 120


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys") / "keys"
    make_keys(directory, new_pair)
    return directory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Services]:
    """A scheduler, its storage and an agent with two workers."""
    with Services(tmp_path_factory.mktemp("cluster"), "--keys", str(keys)) as services:
        services.add_agent(2, "--keys", str(keys))
        yield services


def attack(cluster: Services, session: int, task: int, *keys: str) -> dict[str, list[str]]:
    """What the attacker gets from each attack."""
    command = [sys.executable, "-m", "attacker", cluster.address, str(session), str(task), *keys]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, env=environment)
    assert ended.returncode == 0, ended.stderr
    got: dict[str, list[str]] = json.loads(ended.stdout)
    assert got.keys() == ATTACKS.keys()
    return got


@pytest.mark.parametrize("keyed", [True, False], ids=["a client's key", "no key"])
def test_attacks_get_nothing_and_hurt_nobody(cluster: Services, keys: Path, keyed: bool) -> None:
    mine = add_key(keys, "mallory", KeyRole.CLIENT, new_pair) if keyed else None
    client = partial(Client, address=cluster.address, keys=keys, timeout_seconds=SECONDS)
    with client() as victim, client() as quiet, Gate() as gate:
        assert quiet.submit(abs, -1).result(SECONDS) == 1  # it has no objects yet, and no connection to object storage
        waiting = victim.submit(wait_at, gate.port, 1)
        kept = victim.submit(bytes, SIZE)
        arrival = gate.arrive()
        if mine is not None:  # it may be accepted a second later
            wait_until(lambda: _admitted(cluster, mine), "the attacker's key")
        got = attack(cluster, quiet._io.storage.session, waiting.task_id, *([str(mine)] if mine else []))
        arrival.let_go()
        assert waiting.result(SECONDS) == 1
        assert len(kept.result(SECONDS)) == SIZE
        assert victim.submit(math.sqrt, 16).result(SECONDS) == 4
        for each in (victim, quiet):
            assert len(each.submit(bytes, SIZE).result(SECONDS)) == SIZE
    check_client(got) if keyed else check_stranger(got)
    assert "\x1b" not in cluster.scheduler.said() and "\n[INFO]forged" not in cluster.scheduler.said()
    assert "Traceback" not in cluster.scheduler.said()


def _admitted(cluster: Services, keys: Path) -> bool:
    with Client(address=cluster.address, keys=keys, timeout_seconds=SECONDS) as client:
        return bool(client.submit(abs, -1).result(SECONDS))


def check_client(got: dict[str, list[str]]) -> None:
    """Who has a client's key is a client, and nothing else."""
    assert len(got["session"]) == 2
    assert "the scheduler has not given the key mallory a token for session" in got["session"][0]
    for name, role in (("agent", "an agent"), ("operator", "an operator"), ("manager", "a worker manager")):
        assert got[name] == [f"refused: the key mallory has the role client, which cannot be {role}"]
    assert "which cannot be an agent" in got["session"][1]
    for name in ("link", "number"):
        assert "is taken: connect again with another number" in got[name][0] and len(got[name]) == 1
    assert "does not accept the key mallory (client)" in got["monitor"][0]
    done = [answer for answer in got["function"] if answer.startswith("Done")]  # of the attacker's own task
    assert all("is not the BLAKE2b-128 of the name of" in answer for answer in done), done
    for name in ("tasks", "log"):
        assert not [answer for answer in got[name] if answer.startswith(("Functions", "Done", "Published"))], got[name]


def check_stranger(got: dict[str, list[str]]) -> None:
    """Who has no key finds a closed door: no service says anything to it."""
    for name, answers in got.items():
        for answer in answers:
            assert answer.startswith(("refused: the service at tcp://127.0.0.1:", "lost: ")), (name, answer)
