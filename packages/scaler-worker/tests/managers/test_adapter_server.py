"""The program scaler_native_worker_adapter, as curl sees it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scaler_worker.managers import adapter_server
from scaler_worker.managers.adapter_server import BODY_LIMIT, AdapterServer, command
from support.processes import Terminal, Watched, descendants

CURL = shutil.which("curl")
MODULE = "scaler_worker.managers.adapter_server"
SCRIPT = """
post() {
    curl -sS --write-out '\\n%{http_code}\\n' --header "Authorization: Bearer $TOKEN" --data "$1" "$URL"
}
post '{"action": "start_worker_group", "metadata": {"request_id": "1"}}' | tee started
group=$(head -n 1 started | sed 's/.*"worker_group_id": "\\([^"]*\\)".*/\\1/')
post '{"action": "start_worker_group", "metadata": {"request_id": "1"}}'
post '{"action": "start_worker_group", "metadata": {"request_id": "2"}}'
post "{\\"action\\": \\"shutdown_worker_group\\", \\"worker_group_id\\": \\"$group\\"}"
post '{"action": "shutdown_worker_group", "worker_group_id": "nobody"}'
post '{"action": "get_worker_adapter_info"}'
post '{"action": '
post "$(printf '%60000s' | tr ' ' '[')"
TOKEN=wrong
post '{"action": "get_worker_adapter_info"}'
"""


class HandingOver:
    """An adapter whose only group ends when it is killed; `killed_at` is in seconds."""

    def __init__(self) -> None:
        self.now, self.killed_at = 0.0, 0.0

    def stop(self, *, force: bool) -> None:
        self.killed_at = self.now if force else 0.0

    def groups(self) -> list[str]:
        return [] if self.killed_at else ["group"]

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_groups_have_time_to_hand_over_after_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter: Any = HandingOver()
    clock = SimpleNamespace(time=lambda: adapter.now)
    server = AdapterServer(command().read(["ipc:///nowhere/at/all", "--drain-timeout-seconds", "5"], {}), adapter)
    times = SimpleNamespace(sleep=adapter.sleep, get_running_loop=lambda: clock)
    monkeypatch.setattr(adapter_server, "asyncio", times)
    asyncio.run(server._end())
    assert adapter.killed_at == pytest.approx(35, abs=1)


@pytest.fixture
def curl() -> str:
    if CURL is None:
        pytest.skip("curl is not installed: the adapter is not driven by a script")
    return CURL


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Terminal, str]]:
    """An adapter for at most one worker, and its URL."""
    monkeypatch.setenv("SCALER_ADAPTER_TOKEN", "secret")
    words = ["ipc:///nowhere/at/all", "--host", "127.0.0.1", "--port", "0", "--max-workers", "1"]
    with Terminal(sys.executable, "-m", MODULE, *words) as program:
        yield program, program.read_until("listen to").rpartition(" ")[2]


def test_a_script_of_curl_drives_the_adapter(adapter: tuple[Terminal, str], curl: str, tmp_path: Path) -> None:
    _, url = adapter
    done = subprocess.run(
        ["sh", "-eu", "-c", SCRIPT],
        env={"PATH": str(Path(curl).parent) + ":/usr/bin:/bin", "URL": url, "TOKEN": "secret"},
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    bodies = [json.loads(line) for line in lines[::2]]
    assert lines[1::2] == ["200", "200", "429", "200", "404", "200", "400", "400", "401"]
    assert bodies[0] == bodies[1] and bodies[0]["status"] == "started"
    assert bodies[5]["max_worker_groups"] == 1
    assert all(body["error"] for body in (bodies[2], bodies[4], *bodies[6:]))


def test_a_token_may_stand_in_the_body_and_bodies_are_limited(adapter: tuple[Terminal, str], curl: str) -> None:
    _, url = adapter
    bodies = [
        {"action": "get_worker_adapter_info", "auth_token": "secret"},
        {"action": "get_worker_adapter_info"},
        {"action": "x" * BODY_LIMIT, "auth_token": "secret"},
        {"auth_token": "\ud800"},
    ]
    statuses = []
    for body in [*map(json.dumps, bodies), "[" * (BODY_LIMIT - 1)]:
        words = [curl, "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--data", "@-", url]
        done = subprocess.run(words, input=body, capture_output=True, encoding="utf-8", timeout=30)
        statuses.append(done.stdout)
    assert statuses == ["200", "401", "400", "401", "400"]


def test_no_group_outlives_the_adapter(adapter: tuple[Terminal, str], curl: str) -> None:
    program, url = adapter
    body = json.dumps({"action": "start_worker_group", "auth_token": "secret"})
    subprocess.run([curl, "--silent", "--data", body, url], check=True, capture_output=True, timeout=30)
    with Watched(descendants(program.process.pid)) as watched:
        assert descendants(program.process.pid) and program.end() == 0
        assert watched.wait_gone(5) == []


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--host", "0.0.0.0"], "can be reached from other hosts"),
        (["--port", "70000"], "70000 is more than 65535"),
        (["--tls-cert", "x"], "there is no TLS here"),
        (["--leave-units"], "units are processes of this host"),
    ],
)
def test_errors_name_the_remedy(words: list[str], fault: str) -> None:
    command_line = [sys.executable, "-m", MODULE, "tcp://127.0.0.1:1", *words]
    done = subprocess.run(command_line, capture_output=True, encoding="utf-8", timeout=30)
    assert done.returncode in (1, 2) and fault in done.stderr


def test_options_of_the_earlier_adapter_are_understood() -> None:
    words = [
        "tcp://127.0.0.1:2345",
        "--host",
        "localhost",
        "-p",
        "8080",
        "-mw",
        "4",
        "-wtqs",
        "10",
        "-tt",
        "5",
        "-dt",
        "60",
    ]
    options = command().read(words, {})
    assert (options.host, options.port, options.max_task_concurrency) == ("localhost", 8080, 4)
    assert (options.per_worker_task_queue_size, options.task_timeout_seconds) == (10, 5)
    assert options.death_timeout_seconds == 60
