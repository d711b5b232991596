"""Real agents, templates and workers, under a scheduler that the test plays."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaler_protocol.errors import (
    DeserializeError,
    ResultNotSerializableError,
    TaskExceptionNotSerializableError,
    TaskExitedError,
    TaskTimeoutError,
    WorkerDiedError,
    restore,
)
from scaler_protocol.ids import function_id
from scaler_protocol.messages import (
    Blocked,
    Encoding,
    Output,
    Recall,
    Reconcile,
    Release,
    Resend,
    Returned,
    Shutdown,
    Status,
    Withdraw,
)
from scaler_protocol.payloads import Payloads
from support.faults import TESTS, template_of
from support.gates import SECONDS, Arrival, Gate
from support.processes import Watched
from support.waiting import wait_text

Start = Callable[..., Any]


@pytest.mark.parametrize("event_loop", ["builtin", "uvloop"])
def test_results_of_one_and_of_many(scheduler: Any, cluster: Start, event_loop: str) -> None:
    cluster("-n", "2", "--event-loop", event_loop)
    assert scheduler.hello.workers == 2
    assert scheduler.results(scheduler.run(lambda x: x + 1, (1,))) == [2]
    tasks = scheduler.run(math.sqrt, *((float(i),) for i in range(3000)))
    assert scheduler.results(tasks) == [math.sqrt(i) for i in range(3000)]
    assert set(scheduler.times_done.values()) == {1}
    profile = scheduler.done[tasks[-1]][2]
    assert profile.pid and profile.attempt == 1 and profile.peak_memory > 1 << 20


def test_big_calls_and_results(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")
    big = os.urandom(3_000_000)
    assert scheduler.results(scheduler.run(lambda x: x[::-1], (big,), (big,))) == [big[::-1]] * 2
    assert scheduler.results(scheduler.run(lambda n: b"x" * n, *((n * 100_000,) for n in range(20))))


def test_killed_worker_charges_the_running_task_alone(scheduler: Any, cluster: Start, tmp_path: Path) -> None:
    cluster("-n", "2")

    def suicide(path: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    quick = scheduler.run(lambda x: x, *((i,) for i in range(500)))
    [killed] = scheduler.run(suicide, ("",))
    more = scheduler.run(lambda x: x, *((i,) for i in range(500)))
    error = scheduler.error(killed, Status.LOST)
    assert isinstance(error, WorkerDiedError)
    assert "SIGKILL" in str(error) and error.details["attempt"] == 1
    assert scheduler.results(quick + more) == [*range(500), *range(500)]
    assert set(scheduler.times_done.values()) == {1}


def test_a_crash_brings_its_last_words(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")

    def crash() -> None:
        import ctypes

        ctypes.string_at(0)

    [task] = scheduler.run(crash, ())
    error = scheduler.error(task, Status.LOST)
    assert "SIGSEGV" in str(error) and "string_at" in error.details["output"]
    [task] = scheduler.run(lambda: os._exit(3), ())
    assert "exited with code 3" in str(scheduler.error(task, Status.LOST))
    assert scheduler.results(scheduler.run(abs, (-1,))) == [1]


def test_withdrawn_runs(scheduler: Any, cluster: Start, tmp_path: Path) -> None:
    cluster("-n", "1")
    started = tmp_path / "started"

    def hang(path: str) -> None:
        Path(path).write_text(str(os.getpid()), encoding="utf-8")
        time.sleep(100)

    [running] = scheduler.run(hang, (str(started),))
    queued = scheduler.run(abs, *((-i,) for i in range(10)))
    scheduler.pump()
    pid = int(wait_text(started))
    withdrawn = [running, *queued[5:]]
    scheduler.say(Withdraw([scheduler.runs[task] for task in withdrawn]))
    scheduler.until(lambda: scheduler.done.keys() >= set(withdrawn))
    assert all(scheduler.done[task][0] == Status.CANCELLED for task in withdrawn)
    assert scheduler.results(queued[:5]) == [0, 1, 2, 3, 4]
    assert not os.path.exists(f"/proc/{pid}")
    assert set(scheduler.times_done.values()) == {1}


def test_timeouts(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "2", "--task-timeout-seconds", "0.3")
    [own] = scheduler.run(time.sleep, (100,), timeout_seconds=0.1)
    [general] = scheduler.run(time.sleep, (100,))
    assert isinstance(scheduler.error(own), TaskTimeoutError)
    assert "0.3 s" in str(scheduler.error(general))
    assert scheduler.results(scheduler.run(abs, (-1,), timeout_seconds=60)) == [1]


def test_endings_that_leave_the_worker_alive(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")
    [pid] = scheduler.results(scheduler.run(os.getpid, ()))

    def raises_unpicklable() -> None:
        class LocalError(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("no way")

        raise LocalError("hard to send")

    def interrupts() -> None:
        raise KeyboardInterrupt

    cases: list[tuple[Any, tuple[Any, ...], type, str]] = [
        (sys.exit, (3,), TaskExitedError, "SystemExit"),
        (interrupts, (), TaskExitedError, "KeyboardInterrupt"),
        (lambda: (i for i in [1]), (), ResultNotSerializableError, "generator"),
        (raises_unpicklable, (), TaskExceptionNotSerializableError, "LocalError: hard to send"),
    ]
    for function, call, kind, text in cases:
        [task] = scheduler.run(function, call)
        error = scheduler.error(task)
        assert isinstance(error, kind) and text in str(error), error
    assert scheduler.results(scheduler.run(os.getpid, ())) == [pid]


def test_what_cannot_be_loaded_is_named(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")
    [by_name] = scheduler.send_run(scheduler.named("no.such.module:function"), [b"[]"], encoding=Encoding.JSON)
    assert "no.such.module" in str(scheduler.error(by_name))
    [call] = scheduler.send_run(scheduler.function(abs), [b"garbage"])
    error = scheduler.error(call)
    assert isinstance(error, DeserializeError) and "arguments" in str(error)
    broken = b"cno_such_module\nf\n."
    scheduler.bodies[function_id(broken)] = ("broken", broken)
    [function] = scheduler.send_run(function_id(broken), [pickle.dumps(((), {}))])
    assert "broken" in str(scheduler.error(function)) and "no_such_module" in str(scheduler.error(function))


def test_an_exception_comes_with_its_traceback(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")

    def fails() -> None:
        try:
            dict[str, int]()["missing"]
        except KeyError as error:
            raise ValueError("outer") from error

    [task] = scheduler.run(fails, ())
    scheduler.until(lambda: task in scheduler.done)
    status, payload, _ = scheduler.done[task]
    assert status == Status.RAISED
    error, text = pickle.loads(payload)
    assert isinstance(error, ValueError) and isinstance(error.__cause__, KeyError)
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_frame.f_code.co_name == "fails"
    assert "missing" in text and "outer" in text


def test_functions_by_name_with_json(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")
    calls = [b"[9]", b'{"args": [16]}', b'["x"]', json.dumps({"kwargs": {}}).encode()]
    tasks = scheduler.send_run(scheduler.named("math:sqrt"), calls, encoding=Encoding.JSON)
    scheduler.until(lambda: scheduler.done.keys() >= set(tasks))
    assert [json.loads(scheduler.done[task][1]) for task in tasks[:2]] == [3.0, 4.0]
    assert [scheduler.done[task][0] for task in tasks[2:]] == [Status.RAISED] * 2


def test_functions_that_are_not_allowed_are_not_called(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1", "--allow-functions", "math:sqrt")
    names = ("math:sqrt", "math:cos")
    named = [scheduler.send_run(scheduler.named(name), [b"[9]"], encoding=Encoding.JSON) for name in names]
    tasks = [*named[0], *named[1], *scheduler.run(abs, (-1,))]
    scheduler.until(lambda: scheduler.done.keys() >= set(tasks))
    assert json.loads(scheduler.done[tasks[0]][1]) == 3.0
    for task, reason in zip(tasks[1:], ("'math:cos' is not allowed", "'abs' is not allowed"), strict=True):
        status, payload, _ = scheduler.done[task]
        assert status == Status.FAILED
        assert reason in (text := str(restore(payload))) and text.endswith("(--allow-functions math:sqrt)")


def test_functions_are_asked_for(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "2")
    function = scheduler.function(lambda x: 2 * x)
    tasks = scheduler.send_run(function, [pickle.dumps(((i,), {})) for i in range(5)], with_body=False)
    assert scheduler.results(tasks) == [0, 2, 4, 6, 8]


def test_recall_gives_back_the_newest(scheduler: Any, cluster: Start, tmp_path: Path) -> None:
    cluster("-n", "1")
    started, release = tmp_path / "started", tmp_path / "release"

    def hold(started: str, release: str) -> None:
        Path(started).write_text("x", encoding="utf-8")
        while not Path(release).exists():
            time.sleep(0.01)

    scheduler.run(hold, (str(started), str(release)))
    queued = scheduler.run(abs, *((-i,) for i in range(10)))
    wait_text(started)
    scheduler.say(Recall(3))
    scheduler.until(lambda: scheduler.heard(Returned))
    assert sorted(scheduler.heard(Returned)[0].runs) == [scheduler.runs[task] for task in queued[-3:]]
    release.touch()
    assert scheduler.results(queued[:-3]) == list(range(7))


def test_nothing_waits_behind_a_task_that_turned_out_long(scheduler: Any, cluster: Start, tmp_path: Path) -> None:
    cluster("-n", "2")
    release = tmp_path / "release"

    def maybe(hold: str) -> int:
        while hold and not Path(hold).exists():
            time.sleep(0.01)
        return 1

    scheduler.results(scheduler.run(maybe, *([("",)] * 50)))
    held = scheduler.run(maybe, *([(str(release),)] + [("",)] * 400))
    assert scheduler.results(held[1:]) == [1] * 400
    release.touch()
    assert scheduler.results(held[:1]) == [1]
    assert set(scheduler.times_done.values()) == {1}


def test_outcomes_are_kept_until_released(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")
    tasks = scheduler.run(abs, (-1,), (-2,))
    assert scheduler.results(tasks) == [1, 2]
    scheduler.say(Release(tasks[:1]))
    scheduler.say(Resend(tasks))
    scheduler.until(lambda: scheduler.times_done[tasks[1]] == 2)
    assert scheduler.times_done[tasks[0]] == 1


def test_a_new_scheduler_hears_what_is_held(scheduler: Any, cluster: Start, tmp_path: Path) -> None:
    cluster("-n", "1")
    release = tmp_path / "release"

    def hold(release: str) -> int:
        while not Path(release).exists():
            time.sleep(0.01)
        return 7

    finished = scheduler.run(abs, (-1,))
    scheduler.results(finished)
    running = scheduler.run(hold, (str(release),))
    scheduler.pump()
    scheduler.close()
    restarted = type(scheduler)(scheduler.address)
    try:
        restarted.until(lambda: restarted.heard(Reconcile))
        [resume] = restarted.heard(Reconcile)
        assert list(resume.running) == running and list(resume.runs) == [scheduler.runs[task] for task in running]
        assert list(resume.finished) == finished
        restarted.say(Resend(finished))
        release.touch()
        assert restarted.results(finished + running) == [1, 7]
    finally:
        restarted.close()


def test_output_is_streamed_ahead_of_the_result(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")

    def talk() -> None:
        import threading

        print("one")
        thread = threading.Thread(target=print, args=("two",), kwargs={"file": sys.stderr})
        thread.start()
        thread.join()
        print("three", end="")

    [task] = scheduler.run(talk, (), stream_output=1)
    scheduler.results([task])
    written = [
        (stream, bytes(text))
        for message in scheduler.heard(Output)
        for stream, text in zip(message.streams, message.texts, strict=True)
    ]
    assert [text for stream, text in written if stream == 1] == [b"one\n", b"three"]
    assert b"".join(text for stream, text in written if stream == 2) == b"two\n"


def test_the_template_may_be_killed(scheduler: Any, cluster: Start, tmp_path: Path) -> None:
    agent = cluster("-n", "2")
    release = tmp_path / "release"

    def hold(release: str) -> int:
        while not Path(release).exists():
            time.sleep(0.01)
        return os.getpid()

    scheduler.until(lambda: agent.log().count("] started") == 2)
    before = agent.family()
    [task] = scheduler.run(hold, (str(release),))
    scheduler.pump()
    template = template_of(agent.pid)
    os.kill(template, signal.SIGKILL)
    scheduler.until(lambda: "starting another one" in agent.log())
    release.touch()
    assert scheduler.results([task])[0] in before
    [dead] = scheduler.run(lambda: os.kill(os.getpid(), 9), ())
    assert "SIGKILL" in str(scheduler.error(dead, Status.LOST))
    tasks = scheduler.run(os.getpid, *([()] * 200))
    assert set(scheduler.results(tasks))
    [dead] = scheduler.run(lambda: os.kill(os.getpid(), 9), ())
    assert "SIGKILL" in str(scheduler.error(dead, Status.LOST))
    assert scheduler.results(scheduler.run(abs, (-1,))) == [1]


def test_processes_of_a_task_end_with_it_in_whatever_sessions(scheduler: Any, cluster: Start, tmp_path: Path) -> None:
    cluster("-n", "1")
    started = tmp_path / "started"

    def descend(path: str) -> None:
        for _ in range(2):
            if os.fork():
                break
            os.setsid()
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        while True:
            signal.pause()

    [task] = scheduler.run(descend, (str(started),))
    scheduler.until(lambda: started.exists() and started.read_text("utf-8").count("\n") == 3)
    pids = set(map(int, started.read_text("utf-8").split()))
    with Watched(pids) as watched:
        scheduler.say(Withdraw([scheduler.runs[task]]))
        scheduler.until(lambda: task in scheduler.done)
        assert watched.wait_gone(5) == []


def test_a_host_that_drains_leaves_when_it_has_handed_over(scheduler: Any, cluster: Start) -> None:
    with Gate() as gate:
        program = (str(Path(__file__).with_name("waiting_agent.py")), str(gate.port))
        agent = cluster("-n", "1", program=program, environment={"PYTHONPATH": str(TESTS)})
        arrivals: list[Arrival] = []

        def arrived() -> bool:
            arrivals.extend(gate.arrived())
            return bool(arrivals)

        agent.process.terminate()
        scheduler.until(arrived)
        scheduler.pump()
        assert scheduler.lost is None, "the scheduler would say that nothing of the host is needed any more"
        [arrival] = arrivals
        arrival.let_go()
        scheduler.until(lambda: scheduler.lost)
        assert agent.process.wait(SECONDS) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_the_agent(scheduler: Any, cluster: Start, tmp_path: Path, number: signal.Signals) -> None:
    agent = cluster("-n", "3", "--drain-timeout-seconds", "1")
    started = tmp_path / "started"

    def spin(path: str) -> None:
        os.fork()
        Path(path).write_text("x", encoding="utf-8")
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60))
        while True:
            pass

    scheduler.run(spin, (str(started),))
    wait_text(started)
    scheduler.until(lambda: "Worker[2] started" in agent.log())
    family = agent.family()
    assert len(family) == 6
    with Watched(family) as watched:
        agent.process.send_signal(number)
        code = agent.process.wait(10)
        assert code == (-9 if number == signal.SIGKILL else 0)
        assert watched.wait_gone(5) == []
    scheduler.until(lambda: scheduler.lost)


def test_a_second_signal_ends_what_tasks_have_detached_too(scheduler: Any, cluster: Start, tmp_path: Path) -> None:
    agent = cluster("-n", "1")
    started = tmp_path / "started"

    def detach(path: str) -> None:
        if os.fork() == 0:
            os.setsid()
            Path(path).write_text(f"{os.getpid()}\n", encoding="utf-8")
        while True:
            signal.pause()

    scheduler.run(detach, (str(started),))
    wait_text(started)
    with Watched([*agent.family(), int(started.read_text("utf-8"))]) as watched:
        agent.process.send_signal(signal.SIGTERM)
        scheduler.until(lambda: "draining" in agent.log())
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(10) == 128 + signal.SIGTERM
        assert watched.wait_gone(5) == []


def test_the_agent_ends_with_its_caller(scheduler: Any, cluster: Start) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as caller:
        agent = cluster("-n", "1", "--parent-pid", str(caller.pid))
        caller.kill()
    assert agent.process.wait(10) == 0


def test_preload(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "2", "--preload", "os:putenv('SCALER_TEST', 'yes')")
    assert scheduler.results(scheduler.run(abs, (-1,))) == [1]


@pytest.mark.parametrize(
    ("spec", "code", "text"),
    [
        ("nonsense", 2, "preload must be in 'module.sub:func(...)' format"),
        ("os:environ", 1, "Preload target must be callable"),
        ("no.such:thing", 1, "no.such"),
        ("math:sqrt(-1)", 1, "failed: ValueError: "),
        ("os:_exit(3)", 1, "the last one exited with code 3; each begins with the preload os:_exit(3)"),
    ],
)
def test_a_preload_that_fails_ends_the_agent(scheduler: Any, cluster: Start, spec: str, code: int, text: str) -> None:
    has_traceback = code == 1 and "_exit" not in spec
    agent = cluster("-n", "2", "--preload", spec, join=False, tracebacks=int(has_traceback))
    assert agent.process.wait(20) == code
    assert text in agent.log()


def test_a_scheduler_at_port_0_is_refused() -> None:
    command = [sys.executable, "-m", "scaler_worker", "tcp://127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'tcp://127.0.0.1:0': cannot connect to port 0; name the port of the service" in done.stderr


def test_the_scheduler_may_end_it(scheduler: Any, cluster: Start) -> None:
    agent = cluster("-n", "1")
    scheduler.say(Shutdown())
    assert agent.process.wait(10) == 0


def test_it_gives_up_without_a_scheduler(scheduler: Any, cluster: Start) -> None:
    agent = cluster("-n", "1", "--death-timeout-seconds", "0.5")
    scheduler.close()
    assert agent.process.wait(20) == 1
    assert agent.log().count("[ERROR]") == 1


def test_it_says_soon_that_there_is_no_scheduler(scheduler: Any, cluster: Start) -> None:
    scheduler.close()
    agent = cluster("-n", "1", "--death-timeout-seconds", "3", join=False)
    assert agent.process.wait(20) == 1
    missing = r"no connection to the scheduler at ipc://\S+ for 1\.\d s \(cannot connect\): is it running\?"
    assert len(re.findall(missing, agent.log())) == 1


def test_status_and_start_lines(scheduler: Any, cluster: Start) -> None:
    agent = cluster("-n", "2", "--worker-names", "anna,bert", "--heartbeat-interval-seconds", "0.1")
    scheduler.until(lambda: scheduler.status and len(scheduler.status.names) == 2 and all(scheduler.status.rsses))
    assert sorted(scheduler.status.names) == ["anna", "bert"]
    lines = [line.partition(": ")[2] for line in agent.log().splitlines()]
    assert lines[0].startswith("logging to") and lines[1] == "use event loop: builtin"
    assert re.fullmatch(r"ClusterProcess: may have \d+ files and connections open", lines[3])
    assert lines[2].startswith("ClusterProcess: starting 2 workers, heartbeat_interval_seconds=0.1, object_retention")
    assert {"Worker[0] started", "Worker[1] started"} <= set(lines)


def test_the_host_reports_no_more_often_than_the_heartbeat_of_the_scheduler(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1", "--heartbeat-interval-seconds", "0.05")
    joined = time.monotonic()
    scheduler.until(lambda: scheduler.status is not None)
    first = scheduler.status
    scheduler.until(lambda: scheduler.status is not first)
    assert time.monotonic() >= joined + 0.9, "the heartbeat of the scheduler is 1 s"


def test_workers_draw_different_numbers(scheduler: Any, cluster: Start, tmp_path: Path) -> None:
    cluster("-n", "2")

    def draw(folder: str) -> tuple[int, float]:
        import random

        number = random.random()
        Path(folder, str(os.getpid())).touch()
        while len(os.listdir(folder)) < 2:
            time.sleep(0.01)
        return os.getpid(), number

    folder = tmp_path / "pids"
    folder.mkdir()
    drawn = scheduler.results(scheduler.run(draw, (str(folder),), (str(folder),)))
    assert len(dict(drawn)) == 2 and drawn[0][1] != drawn[1][1]


def test_a_blocked_parent_gives_its_place_away(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")

    def parent() -> int:
        """Blocks as the client inside a task would, until another task has run on this host."""
        import socket as sockets

        from scaler_client import task_context
        from scaler_protocol.messages import Blocked

        runtime: Any = task_context.runtime()
        transport = runtime.connect()
        run = runtime.current()._run
        _ours, theirs = sockets.socketpair()
        while not transport.turn(0.0):
            transport.wait(theirs.fileno(), 1.0)
        transport.send(Blocked((run,), (True,)))
        transport.flush(0.0)
        while not os.path.exists("/tmp/scaler-test-child-ran"):
            time.sleep(0.01)
        return os.getpid()

    path = Path("/tmp/scaler-test-child-ran")
    path.unlink(missing_ok=True)
    try:
        [blocked] = scheduler.run(parent, ())
        scheduler.until(lambda: scheduler.heard(Blocked))
        assert list(scheduler.heard(Blocked)[0].runs) == [scheduler.runs[blocked]]
        [child] = scheduler.run(os.getpid, ())
        [pid] = scheduler.results([child])
        path.touch()
        assert scheduler.results([blocked])[0] != pid
    finally:
        path.unlink(missing_ok=True)


def test_what_one_task_brings_does_not_end_the_agent(scheduler: Any, cluster: Start) -> None:
    """A very long name, a very high number of attempts, the results of very many tasks."""
    cluster("-n", "2")
    function = scheduler.function(lambda *given: len(given))
    scheduler.bodies[function] = ("f" * 4096, scheduler.bodies[function][1])
    call = pickle.dumps(((1, 2), {}))
    assert scheduler.results(scheduler.send_run(function, [call])) == [2]
    many = 2**16 + 1
    [task] = scheduler.send_run(
        function,
        [call],
        extra={"attempts": [2**17], "dependents": [0] * many, "needs": range(many), "inputs": Payloads([b"r"] * many)},
    )
    assert scheduler.results([task]) == [2]
    assert scheduler.done[task][2].attempt == 2**17


def test_without_descriptors_workers_are_started_later(scheduler: Any, cluster: Start) -> None:
    agent = cluster("-n", "2")
    scheduler.results(scheduler.run(abs, (-1,)))
    limits = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    [killed] = scheduler.run(os._exit, (1,))
    assert isinstance(scheduler.error(killed, Status.LOST), WorkerDiedError)
    scheduler.until(lambda: "workers cannot be started" in agent.log())
    [killed] = scheduler.run(os._exit, (1,))
    assert isinstance(scheduler.error(killed, Status.LOST), WorkerDiedError)
    big = scheduler.run(len, (bytes(500_000),))
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, limits)
    assert scheduler.results(big) == [500_000]
    said = re.findall("workers cannot be started|workers can be started again", agent.log())
    assert said in (["workers cannot be started", "workers can be started again"] * times for times in (1, 2))
    scheduler.until(lambda: "workers can be started again" in agent.log())


def test_a_killed_agent_leaves_nothing_in_the_temporary_directory(
    scheduler: Any, cluster: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    agent = cluster("-n", "2")
    assert scheduler.results(scheduler.run(abs, (-1,))) == [1]
    agent.process.kill()
    agent.process.wait(10)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["close", "overwrite"])
def test_a_task_that_takes_its_workers_descriptors_is_named(scheduler: Any, cluster: Start, name: str) -> None:
    def close() -> None:
        os.closerange(3, 4096)

    def overwrite() -> None:
        pipe = os.pipe()
        for descriptor in set(range(3, 40)) - {*pipe}:
            os.dup2(pipe[1], descriptor)

    agent = cluster("-n", "1")
    [task] = scheduler.run({"close": close, "overwrite": overwrite}[name], ())
    error = scheduler.error(task, Status.LOST)
    assert isinstance(error, WorkerDiedError)
    assert "ended because a task closed or overwrote its descriptors while it ran the task" in str(error)
    assert scheduler.results(scheduler.run(abs, (-1,))) == [1]
    assert "ended because a task closed or overwrote its descriptors while it ran task" in agent.log()
    assert "Traceback" not in agent.log()


def test_a_task_that_overwrites_the_shared_words_silences_nobody(scheduler: Any, cluster: Start) -> None:
    agent = cluster("-n", "2")

    def scribble() -> None:
        from scaler_client import task_context

        runtime: Any = task_context.runtime()
        everything = memoryview(runtime._runner._cells.obj).cast("Q")
        for at in range(len(everything)):
            everything[at] = 2**64 - 1

    scheduler.run(scribble, ())
    scheduler.until(lambda: scheduler.done)
    tasks = scheduler.run(abs, *((-i,) for i in range(200)))
    assert scheduler.results(tasks) == list(range(200))
    assert "overwritten" in agent.log()


def test_a_first_run_that_wrote_zeros_over_its_word_is_charged(scheduler: Any, cluster: Start) -> None:
    cluster("-n", "1")

    def erase() -> None:
        from scaler_client import task_context

        runtime: Any = task_context.runtime()
        for at in range(len(runtime._runner._cells)):
            runtime._runner._cells[at] = 0
        os._exit(1)

    [task] = scheduler.run(erase, ())
    assert isinstance(scheduler.error(task, Status.LOST), WorkerDiedError)
    assert scheduler.results(scheduler.run(abs, (-1,))) == [1]


def test_a_worker_that_says_nonsense_is_replaced(scheduler: Any, cluster: Start) -> None:
    agent = cluster("-n", "1")

    def lie(kind: int) -> None:
        from scaler_client import task_context
        from scaler_worker.ipc.frames import REPLY

        runtime: Any = task_context.runtime()
        reply = REPLY.pack(kind, 77, 4, runtime.current()._run, *[0] * 8) + b"what"
        runtime._runner._write(reply)

    def is_over(task: int) -> bool:
        returned = {run for message in scheduler.heard(Returned) for run in message.runs}
        return task in scheduler.done or scheduler.runs[task] in returned

    for kind in (*range(1, 10), 200):
        [lied] = scheduler.run(lie, (kind,))
        # A death is charged to what the worker runs by then, which must be the task that lied.
        scheduler.until(lambda lied=lied: is_over(lied))
        assert lied not in scheduler.done or scheduler.done[lied][0] != Status.RAISED
        for _ in range(3):  # the next task may be on the same worker by then, and is not charged
            [task] = scheduler.run(abs, (-1,))
            scheduler.until(lambda task=task: task in scheduler.done)
            if scheduler.done[task][0] == Status.VALUE:
                break
            assert b'"charged": false' in scheduler.done[task][1]
        assert scheduler.done[task][0] == Status.VALUE
    assert agent.process.poll() is None


@pytest.mark.parametrize(
    "effect",
    ["SendToScheduler", "StartWorker", "Define", "SendTasks", "RecallTail", "ReadRun", "KillWorker", "Log"],
)
def test_an_agent_outlives_effects_that_fail(scheduler: Any, cluster: Start, tmp_path: Path, effect: str) -> None:
    program = (str(Path(__file__).with_name("failing_agent.py")), effect, "2")
    agent = cluster("-n", "2", program=program)
    started = tmp_path / "started"

    def hang(path: str) -> None:
        Path(path).write_text("x", encoding="utf-8")
        time.sleep(100)

    plain = [*scheduler.run(abs, *((-i,) for i in range(300))), *scheduler.run(math.sqrt, (4.0,))]
    [timed] = scheduler.run(time.sleep, (100,), timeout_seconds=0.2)
    [withdrawn] = scheduler.run(hang, (str(started),))
    scheduler.until(lambda: started.exists() or withdrawn in scheduler.done)
    scheduler.say(Withdraw([scheduler.runs[withdrawn]]))
    tasks = [*plain, timed, withdrawn]
    scheduler.until(lambda: scheduler.done.keys() >= set(tasks))
    later = scheduler.run(abs, *((-i,) for i in range(50)))
    assert scheduler.results(later) == list(range(50))
    assert agent.process.poll() is None and not scheduler.lost
