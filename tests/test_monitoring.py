"""Monitors against a real scheduler under real work: what they say equals what clients know."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import pty
import re
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler_protocol.addresses import Address
from scaler_protocol.messages import Status
from scaler_ui.listening import Listening
from scaler_ui.model.findings import STORAGE_SECONDS, findings, sentence
from scaler_ui.model.model import MonitorModel
from scaler_ui.web.operator_actions import OperatorActions
from support.browsers import read
from support.clusters import LocalCluster
from support.fault_tasks import kill_itself
from support.gates import SECONDS, Gate, wait_at
from support.object_tasks import explode_big
from support.own_keys import MONITOR, own
from support.processes import PROGRAMS, Terminal, command_line, descendants, free_ports, listener_of, stopped
from support.task_rows import live_rows
from support.tasks import explode
from support.waiting import wait_until

ESCAPES = re.compile(r"\x1b(\[[0-9;?<>=]*[a-zA-Z]|[()][0-9A-B]|[=>]|\][^\x07]*\x07|P[^\x1b]*\x1b\\)")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two workers whose agent tells often how it is."""
    started = LocalCluster(
        tmp_path_factory.mktemp("watched") / "log",
        n_workers=2,
        heartbeat_interval_seconds=1,
        max_number_of_tasks_waiting=-1,
    )
    yield started
    started.end()


@pytest.fixture
def monitor(watched: LocalCluster) -> Address:
    return Address.parse(watched.address).beside(2)


@pytest.fixture
def user(watched: LocalCluster) -> Iterator[Client]:
    with Client(address=watched.address, timeout_seconds=SECONDS) as connected:
        yield connected


@pytest.fixture
def listening(monitor: Address) -> Iterator[Listening]:
    made = Listening(monitor, credentials=own(MONITOR))
    yield made
    made.close()


def has_ended(count: int) -> Callable[[MonitorModel], bool]:
    return lambda model: sum(figures.count for figures in model.functions.values()) >= count


def test_what_is_heard_is_what_was_done(listening: Listening, user: Client) -> None:
    listening.wait_for(lambda model: model.status is not None, SECONDS)
    assert listening.model.status is not None
    before = listening.model.status
    assert user.map(math.sqrt, range(500)) == [math.sqrt(number) for number in range(500)]
    futures = [user.submit(explode, "no") for _ in range(3)]
    assert all(isinstance(future.exception(), ValueError) for future in futures)
    listening.wait_for(has_ended(503), SECONDS)
    functions = listening.model.functions
    assert functions["math:sqrt"].ended == {Status.VALUE: 500}
    (failing,) = [figures for name, figures in functions.items() if name.endswith("explode")]
    assert failing.ended == {Status.RAISED: 3} and failing.peak_memory > 10**6
    row = listening.model.tasks.find(futures[0].task_id)
    assert row is not None
    task, profile = listening.model.tasks.row(row), futures[0].profiling_info()
    assert (task.state, task.session) == ("raised", futures[0].task_id >> 32)
    assert abs(task.duration - profile.duration_us / 1e6) < 1e-9 and task.since <= task.assigned <= task.ended
    heard = len(listening.model.history)
    listening.wait_for(lambda model: len(model.history) > heard, SECONDS)
    after = listening.model.status
    assert (after.succeeded - before.succeeded, after.raised - before.raised) == (500, 3)
    assert (after.waiting, after.held, after.assigned) == (0, 0, 0)


def test_who_comes_late_is_told_what_has_not_ended(monitor: Address, user: Client, gate: Gate) -> None:
    running = [user.submit(wait_at, gate.port, number) for number in range(2)]
    arrivals = [gate.arrive() for _ in running]
    waiting = [user.submit(wait_at, gate.port, number) for number in range(2, 5)]
    needy = user.submit(max, running[0], 9)
    known = {future.task_id for future in [*running, *waiting, needy]}
    late = Listening(monitor, credentials=own(MONITOR))
    late.wait_for(lambda model: model.tasks.live == 6, SECONDS)
    tasks = late.model.tasks
    assert {tasks.value("id", row) for row in live_rows(tasks)} == known
    assert {tasks.function_name(row) for row in live_rows(tasks)} == {"support.gates:wait_at", "builtins:max"}
    late.wait_for(lambda model: model.status is not None and any(model.status.worker_runs), SECONDS)
    for arrival in arrivals:
        arrival.let_go()
    for _ in waiting:
        gate.arrive().let_go()
    assert [future.result() for future in [*running, *waiting]] == list(range(5)) and needy.result() == 9
    late.wait_for(lambda model: model.tasks.live == 0, SECONDS)
    late.close()


def test_the_local_path_says_the_same(watched: LocalCluster) -> None:
    scheduler = Address.parse(watched.address)
    local = Listening(Address(path=f"/tmp/{scheduler.host}_{scheduler.port}_monitor"))
    local.wait_for(lambda model: model.status is not None, SECONDS)
    assert local.model.status is not None and local.model.status.address == watched.address
    local.close()


def test_the_local_path_is_for_its_user_alone(watched: LocalCluster) -> None:
    scheduler = Address.parse(watched.address)
    path = Path(f"/tmp/{scheduler.host}_{scheduler.port}_monitor")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with open(f"{path}.lock", "rb") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_path_of_another_process_is_not_removed() -> None:
    port = free_ports()
    path = Path(f"/tmp/127.0.0.1_{port}_monitor")
    path.write_text("mine", "utf-8")
    address = f"tcp://127.0.0.1:{port}"
    try:
        with Terminal(PROGRAMS / "scaler_scheduler", address, "-osa", "tcp://127.0.0.1:1", "-lf", "json") as scheduler:
            line = json.loads(scheduler.read_until("no monitor can subscribe at"))
            assert line["level"] == "WARNING" and str(path) in line["message"]
            made = Listening(Address.parse(address).beside(2), credentials=own(MONITOR))
            made.wait_for(lambda model: model.status is not None, SECONDS)
            made.close()
            assert scheduler.end() == 0
            assert all(json.loads(said)["message"] for said in scheduler.lines)
            assert sum("no monitor" in said for said in scheduler.lines) == 1
        assert path.read_text("utf-8") == "mine"
    finally:
        path.unlink()


def printed(*words: str | Address, code: int = 0) -> str:
    done = subprocess.run(
        [str(PROGRAMS / str(words[0])), *map(str, words[1:])],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, ""), done
    return done.stdout


def test_top_once_as_json(monitor: Address, watched: LocalCluster, user: Client) -> None:
    user.map(math.sqrt, range(100))
    shown = json.loads(printed("scaler_top", monitor, "--once", "--json"))
    assert shown["total"]["workers"] in (0, 2)  # before and after the agent's first report
    assert shown["address"] == watched.address and shown["task_manager"]["success"] >= 100
    assert shown["client_manager"].keys() == {user.name}
    assert shown["func_to_num_tasks"]["math:sqrt"] >= 100
    assert shown["scheduler_received"]["Submit"] >= 1 and shown["scheduler"]["rss"] > 10**7
    assert "task_manager" in printed("scaler_top", monitor, "--once")


def test_status_and_top_name_what_is_wrong_first(
    watched: LocalCluster, monitor: Address, listening: Listening, user: Client
) -> None:
    lonely = user.submit_verbose(math.sqrt, (4,), {}, capabilities={"tpu": 1})
    listening.wait_for(lambda model: model.tasks.find(lonely.task_id) is not None, SECONDS)
    done = subprocess.run(
        [PROGRAMS / "scaler", "status", watched.address], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    top = printed("scaler_top", monitor, "--once").splitlines()
    lonely.cancel()
    progress, first, *_ = done.stdout.splitlines()
    assert progress.endswith(" workers busy, 1 waiting.") and done.returncode == 0, done
    assert first == "1 task needs tpu=1, which nobody offers." and first in top[0]


def test_object_storage_that_stands_still_for_a_while_answers_late(watched: LocalCluster, listening: Listening) -> None:
    listening.wait_for(lambda model: model.storage is not None, SECONDS)
    [storage] = [pid for pid in descendants(listener_of(watched.address)) if "scaler_storage" in command_line(pid)]
    with stopped(storage):
        until = time.monotonic() + 2.5
        listening.wait_for(lambda model: time.monotonic() > until, SECONDS)
    listening.wait_for(lambda model: model.storage_seconds > STORAGE_SECONDS, SECONDS)
    assert "Object storage answers late: after " in sentence(findings(listening.model, listening.now))


def test_why_a_task_waits_runs_and_ended(monitor: Address, listening: Listening, user: Client, gate: Gate) -> None:
    lonely = user.submit_verbose(math.sqrt, (4,), {}, capabilities={"gpu": 1})
    listening.wait_for(lambda model: model.tasks.find(lonely.task_id) is not None, SECONDS)
    assert printed("scaler_why", monitor, f"{lonely.task_id:x}") == "it waits: no worker offers gpu=1\n"
    lonely.cancel()
    running = [user.submit(wait_at, gate.port, number) for number in range(2)]
    arrivals = [gate.arrive() for _ in running]
    said = printed("scaler_why", monitor, f"{running[0].task_id:x}")
    assert said.startswith(("it runs on ", "it is queued on "))
    last = [user.submit(math.sqrt, number) for number in range(8)][-1]
    listening.wait_for(lambda model: model.tasks.find(last.task_id) is not None, SECONDS)
    said = printed("scaler_why", monitor, f"{last.task_id:x}")
    found = re.fullmatch(r"it waits behind (\d) tasks of priority 0; 2 workers have (\d) tasks\n", said)
    assert found and int(found[1]) + int(found[2]) == 2 + 7, said
    for arrival in arrivals:
        arrival.let_go()
    assert [future.result() for future in running] == [0, 1]
    assert "is not known" in printed("scaler_why", monitor, f"{running[0].task_id:x}", code=1)


def test_what_tasks_print_is_shown_and_logged_with_task_worker_and_host(
    watched: LocalCluster, monitor: Address, user: Client, gate: Gate
) -> None:
    port = gate.port

    def talk() -> object:
        print("how it goes")
        logging.getLogger("mine").warning("odd: %d", 5)
        print("no end", end="")
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(f"{os.getpid()} talks\n".encode())
            return len(line.recv(1))

    kept = ("--output-limit-per-task", "100", "--log-format", "json")
    options = ("-n", "1", "--per-worker-capabilities", "talks", *kept)
    with Terminal(PROGRAMS / "scaler_cluster", *options, watched.address) as agent:
        future = user.submit_verbose(talk, (), {}, capabilities={"talks": -1})
        arrival = gate.arrive()
        why = re.compile(r"it runs on .*it has printed:\nhow it goes\nodd: 5\n", re.DOTALL)
        wait_until(lambda: why.fullmatch(printed("scaler_why", monitor, f"{future.task_id:x}")), "its output")
        arrival.let_go()
        assert future.result() == 0
        assert printed("scaler_why", monitor, f"{future.task_id:x}").endswith("\nhow it goes\nodd: 5\nno end\n")
        line = json.loads(agent.read_until("no end"))
        assert (line["task"], line["message"], line["stream"]) == (f"{future.task_id:x}", "no end", "stdout")
        assert line["worker"].startswith("Worker") and line["host"] == socket.gethostname()
        assert "odd: 5" in [json.loads(each)["message"] for each in agent.lines if '"stderr"' in each]


def test_why_a_worker_died(listening: Listening, user: Client, tmp_path: Path) -> None:
    listening.wait_for(lambda model: model.status is not None, SECONDS)
    future = user.submit(kill_itself, str(tmp_path / "runs"))
    assert future.exception() is not None

    def told(model: MonitorModel) -> set[int]:
        return {event.task for event in model.events if "SIGKILL" in event.text}

    listening.wait_for(lambda model: told(model) == {0, future.task_id}, SECONDS)  # of the task, and of the worker
    (worker, *_) = [event.text for event in listening.model.events if "SIGKILL" in event.text and not event.task]
    assert worker.endswith(f"was killed by SIGKILL while it ran task {future.task_id:x}")
    repeated = [each for each in listening.model.tasks.repeated if each.id == future.task_id]
    assert [each.attempt for each in repeated] == [*range(1, 1 + len(repeated))]  # however short they were
    died = {f"-{each.pid})" for each in repeated}
    assert len(died) == len((tmp_path / "runs").read_text().splitlines()) - 1
    assert all(any(name in event.text for event in listening.model.events) for name in died)


def test_why_an_idle_worker_died(listening: Listening) -> None:
    def alive(model: MonitorModel) -> bool:
        pids = model.status.worker_pids if model.status is not None else ()
        return len(pids) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids)

    listening.wait_for(alive, SECONDS)
    assert listening.model.status is not None
    pid = listening.model.status.worker_pids[0]
    os.kill(pid, signal.SIGKILL)
    listening.wait_for(lambda model: any(f"-{pid})" in event.text for event in model.events), SECONDS)
    (event,) = [event for event in listening.model.events if f"-{pid})" in event.text]
    assert event.text.endswith("was killed by SIGKILL") and event.task == 0


def test_tracebacks_objects_and_graphs_are_told_of(listening: Listening, user: Client) -> None:
    listening.wait_for(lambda model: model.storage is not None, SECONDS)
    future, long = user.submit(explode, "no"), user.submit(explode_big, 500_000)
    assert future.exception() is not None and long.exception() is not None
    kept = user.send_object(bytes(300_000))
    assert user.get({"a": (max, 1, 2), "b": (max, "a", 3), "bad": (explode, "a")}, ["b"]) == {"b": 3}
    listening.wait_for(
        lambda model: (
            {future.task_id, long.task_id} <= model.failures.keys()
            and model.storage is not None
            and kept.size in model.storage.biggest_sizes
            and model.status is not None
            and any(model.status.graph_end_times)
        ),
        SECONDS,
    )
    model = listening.model
    assert model.faults[future.task_id].startswith("Traceback") and "in explode" in model.faults[future.task_id]
    told = model.failures[long.task_id]
    assert model.failures[future.task_id].exception == told.exception == "ValueError"
    assert told.headline.startswith("ValueError: xxxxx") and len(told.text) < 4096
    assert model.status is not None
    assert (model.status.graph_nodes, model.status.graph_succeeded, model.status.graph_failed) == ((2,), (2,), (0,))


def test_calls_that_are_not_plain_are_heard_of(listening: Listening, user: Client) -> None:
    listening.wait_for(lambda model: model.status is not None, SECONDS)
    assert user.get({"a": (abs, -2)}, ["a"]) == {"a": 2}
    assert user.get({"a": (abs, -3), "b": (abs, -4)}, ["a", "b"]) == {"a": 3, "b": 4}
    assert user.submit(len, bytes(100_000)).result() == 100_000
    listening.wait_for(has_ended(4), SECONDS)
    assert listening.model.tasks.live == 0


def test_orders_of_an_operator(tmp_path: Path, gate: Gate) -> None:
    cluster = LocalCluster(tmp_path / "log", n_workers=2, heartbeat_interval_seconds=1)
    monitor = Address.parse(cluster.address).beside(2)
    listening = Listening(monitor, credentials=own(MONITOR))
    actions = OperatorActions(listening.model, monitor)

    def order_until(condition: Callable[[MonitorModel], bool]) -> None:
        def turned(model: MonitorModel) -> bool:
            actions.turn()
            return condition(model)

        listening.wait_for(turned, SECONDS)

    with Client(address=cluster.address) as client:
        running = [client.submit(wait_at, gate.port, number) for number in range(2)]
        arrivals = {arrival.value: arrival for arrival in (gate.arrive() for _ in running)}
        waiting = [client.submit(wait_at, gate.port, number) for number in range(2, 5)]
        listening.wait_for(
            lambda model: model.status is not None and sum(map(bool, model.status.worker_runs)) == 2, SECONDS
        )
        status = listening.model.status
        assert status is not None
        order_until(lambda model: bool(actions.ask_why(waiting[2].task_id, "ann")))
        [answer] = actions.ask_why(waiting[2].task_id, "ann")
        assert answer == "it waits behind 2 tasks of priority 0; 2 workers have 2 tasks"
        order_until(lambda model: "it is next" in str(actions.ask_why(waiting[0].task_id, "ann")))
        actions.cancel(waiting[0].task_id, "ann")
        actions.cancel(running[0].task_id, "bob")
        order_until(lambda model: model.status is not None and model.status.cancelled == 2)
        texts = [event.text for event in listening.model.events]
        said = sorted(text for text in texts if text.endswith("cancelled it"))
        assert said == ["ann (scaler_ui) cancelled it", "bob (scaler_ui) cancelled it"]
        assert not wait([waiting[0], running[0]], SECONDS).not_done  # the client hears of it by a way of its own
        assert waiting[0].cancelled() and running[0].cancelled()
        gate.arrive().let_go()  # the next one, in the place of the one that was stopped
        assert waiting[1].result() == 3
        busy = next(
            pid for pid, run in zip(status.worker_pids, status.worker_runs, strict=True)
            if listening.model.tasks.find_run(run) == listening.model.tasks.find(running[1].task_id)
        )  # fmt: skip
        actions.drain(status.agents[0], busy, "ann")
        order_until(lambda model: model.status is not None and model.status.agent_workers == (1,))
        arrivals["1"].let_go()
        gate.arrive().let_go()
        assert (running[1].result(), waiting[2].result()) == (1, 4)
        order_until(lambda model: model.status is not None and len(model.status.worker_pids) == 1)
        assert listening.model.status is not None and busy not in listening.model.status.worker_pids
    actions.close()
    listening.close()
    cluster.end()


class Screen:
    """scaler_top in a pseudo-terminal: what it writes, without colours, and keys."""

    def __init__(self, address: Address) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
        self.process = subprocess.Popen(
            [str(PROGRAMS / "scaler_top"), str(address)],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=environment,
        )  # fmt: skip
        self._slave = slave
        self._modes = termios.tcgetattr(slave)
        self.seen = ""

    def read_until(self, pattern: str) -> None:
        """Wait until something like it was written since the last time."""
        until = time.monotonic() + SECONDS
        written = b""
        while not re.search(pattern, self.seen):
            assert select.select([self.master], [], [], max(0.0, until - time.monotonic()))[0], (
                f"no {pattern}: {self.seen}"
            )
            written += os.read(self.master, 65536)
            self.seen = ESCAPES.sub("", written.decode("utf-8", "replace"))
        self.seen = ""

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def wait(self) -> int:
        """The exit code; reads on, since a full terminal would hold the program up."""
        until = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < until:
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    os.read(self.master, 65536)
                except OSError:  # the other end is closed
                    break
        return self.process.wait(SECONDS)

    def is_restored(self) -> bool:
        """Whether the terminal's modes are what they were before the program."""
        return termios.tcgetattr(self._slave) == self._modes

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self.master)


@pytest.fixture
def terminal(monitor: Address) -> Iterator[Screen]:
    made = Screen(monitor)
    yield made
    made.close()


def test_top_in_a_terminal(terminal: Screen, user: Client, gate: Gate) -> None:
    terminal.read_until(r"task_manager")
    futures = [user.submit(wait_at, gate.port, number) for number in range(2)]
    arrivals = [gate.arrive() for _ in futures]
    terminal.read_until(r"110|\b2\b")
    terminal.press("M")
    terminal.read_until(r"\[agt_rss\]")
    terminal.press("n")
    terminal.read_until(r"\[worker\]")
    terminal.press("\r")
    terminal.read_until(r"(?s)state .*in logs")
    terminal.resize(24, 100)
    terminal.read_until(r"all keys\[\?\]")  # what a low screen has instead of the list of keys
    for arrival in arrivals:
        arrival.let_go()
    assert [future.result() for future in futures] == [0, 1]
    terminal.press("q")
    assert terminal.wait() == 0


def test_ctrl_c_ends_top(terminal: Screen) -> None:
    terminal.read_until(r"task_manager")
    assert not terminal.is_restored()
    terminal.press("\x03")
    assert terminal.wait() == 0 and terminal.is_restored()


def test_bytes_that_are_no_text_are_no_keys(terminal: Screen) -> None:
    terminal.read_until(r"task_manager")
    os.write(terminal.master, b"\xff")
    written = b""

    def is_sorted() -> bool:
        nonlocal written
        terminal.press("M")  # what comes with the bytes is no key either, so it is pressed again
        while unread_bytes(terminal.master):
            written += os.read(terminal.master, 65536)
        return "[agt_rss]" in ESCAPES.sub("", written.decode("utf-8", "replace"))

    wait_until(is_sorted, "a key is understood")
    terminal.press("q")
    assert terminal.wait() == 0 and terminal.is_restored()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_top_and_leaves_the_terminal_as_it_was(terminal: Screen, number: signal.Signals) -> None:
    terminal.read_until(r"task_manager")
    assert not terminal.is_restored()
    terminal.process.send_signal(number)
    assert terminal.wait() == 0 and terminal.is_restored()


def test_a_signal_ends_top_although_its_terminal_takes_no_output(monitor: Address) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([PROGRAMS / "scaler_top", str(monitor)], stdin=theirs, stdout=theirs, stderr=theirs) as top:
        wait_until(lambda: unread_bytes(ours) > 1000, "the screen")
        fill(os.ttyname(theirs))
        os.close(theirs)
        top.terminate()
        assert top.wait(SECONDS) == -signal.SIGALRM
    os.close(ours)


def test_top_ends_with_its_terminal_although_no_signal_says_so(monitor: Address) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen([PROGRAMS / "scaler_top", str(monitor)], stdin=theirs, stdout=theirs, stderr=theirs) as top:
        os.close(theirs)
        wait_until(lambda: unread_bytes(ours) > 1000, "the screen")
        os.close(ours)
        assert top.wait(SECONDS) in (0, -signal.SIGALRM)


def test_top_without_a_terminal_says_how_to_print(monitor: Address) -> None:
    done = subprocess.run(
        [PROGRAMS / "scaler_top", str(monitor)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "scaler_top: there is no terminal to draw on: --once prints one screen\n"


def fill(terminal: str) -> None:
    """Write to a terminal until it takes nothing more."""
    descriptor = os.open(terminal, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    while select.select([], [descriptor], [], 1.0)[1]:  # the kernel moves on what was written when it has time
        with suppress(BlockingIOError):
            os.write(descriptor, b"x" * 4096)
    os.close(descriptor)


def unread_bytes(descriptor: int) -> int:
    """What waits to be read."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_top_at_the_scheduler_says_where_the_monitor_is(watched: LocalCluster, monitor: Address) -> None:
    screen = Screen(Address.parse(watched.address))
    screen.read_until(rf"monitor is usually {monitor}")
    screen.press("q")
    assert screen.wait() == 0
    screen.close()
    done = subprocess.run(
        [PROGRAMS / "scaler_top", watched.address, "--once", "-t", "0.2"],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and str(monitor) in done.stderr and done.stderr.count("\n") == 1


def test_the_monitor_lives_through_the_end_of_the_scheduler(tmp_path: Path) -> None:
    started = LocalCluster(tmp_path / "log", n_workers=1)
    address = Address.parse(started.address)
    made = Listening(address.beside(2), credentials=own(MONITOR))
    made.wait_for(lambda model: model.status is not None, SECONDS)
    assert made.model.status is not None
    first = made.model.status.incarnation
    assert listener_of(started.address) > 0
    started.end()
    assert not Path(f"/tmp/{address.host}_{address.port}_monitor").exists()
    command = [sys.executable, "-m", "scaler_scheduler", started.address, "-osa", "tcp://127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as another:
        made.wait_for(lambda model: model.status is not None and model.status.incarnation != first, SECONDS)
        another.terminate()
    made.close()


def test_notebooks_show_client_and_cluster(watched: LocalCluster, monitor: Address) -> None:
    with Client(address=watched.address) as client:
        shown = client._repr_html_()
        assert watched.address in shown and client.name in shown and ">connected</span>" in shown
    assert ">disconnected</span>" in client._repr_html_()
    shown = watched.combo._repr_html_()
    assert f"scaler_top {monitor}" in shown and ">2<" in shown and "running</span>" in shown


def test_a_local_cluster_serves_its_pages(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with which NiceGUI takes itself for a part of the test
    with SchedulerClusterCombo(n_workers=1, dashboard=True) as cluster, Client(cluster.get_address()) as client:
        link = client.dashboard_link
        assert link is not None and link == cluster.dashboard_link
        site, _, token = link.partition("?")
        wait_until(lambda: client.name in read(f"{site}clients?{token}"), "the pages know the scheduler")
        future = client.submit(math.sqrt, 4)
        assert future.result() == 2.0
        for shown in (client._repr_html_(), cluster._repr_html_(), future._repr_html_()):
            assert f'href="{site}' in shown and f">{site}?" not in shown
        wait_until(lambda: f"{future.task_id:x}" in read(f"{site}tasks?{token}"), "they show the task")
        assert read(f"{site}tasks") == "", "without the token nothing is shown"
        futures = client.get({"a": (math.sqrt, 4), "b": (math.sqrt, "a")}, keys=["b"], block=False)
        futures["b"].result()
        page = re.search(r'href="([^"]+/graph/of:[^"]+)"', futures._repr_html_())  # type: ignore[attr-defined]
        assert page is not None
        wait_until(lambda: "critical path" in read(page[1]), "the graph has a page by its first task")
    assert cluster.dashboard_link is None and client.dashboard_link is None
    wait_until(lambda: read(link) == "", "the pages have ended with the cluster")
    assert capfd.readouterr().out == ""


def test_a_monitor_loses_no_events_when_another_one_joins(listening: Listening, monitor: Address, user: Client) -> None:
    listening.wait_for(lambda model: model.status is not None, SECONDS)
    for done in range(1, 6):
        assert user.submit(math.sqrt, done).result() == math.sqrt(done)
        another = Listening(monitor, credentials=own(MONITOR))
        another.wait_for(lambda model: model.status is not None, SECONDS)
        another.close()
    listening.wait_for(has_ended(5), SECONDS)
    assert listening.model.functions["math:sqrt"].ended == {Status.VALUE: 5}
