"""Scripts and servers end at any moment, by any signal: quickly, silently, and without leaving anything."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from support.clusters import LocalCluster
from support.endings import Marked, sleep_a_moment, started
from support.gates import SECONDS, Gate
from support.processes import descendants, free_ports, taken_port
from support.waiting import wait_until

QUICKLY_SECONDS = 2.0
NO_NOISE = ("Traceback", "Exception ignored", "KeyboardInterrupt")

COMBO = """
import sys, time
print("begin")
try:
    from scaler import Client, SchedulerClusterCombo
    from support.fault_tasks import step
    with SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as combo:
        print("address", combo.get_address(), flush=True)
        with Client(combo.get_address()) as client:
            print("connected")
            futures = [client.submit(step, sys.argv[1], number, 0.01) for number in range(200)]
            print("submitted")
            client.map(step, [sys.argv[1]] * 20, range(20), [0.01] * 20)
            print("mapped")
            print(sum(future.result()[0] for future in futures))
            print("end")
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""


def port_of(program: Marked) -> int:
    """The port of the cluster that the script told of."""
    program.wait_for("address")
    return int(program.said().split("address tcp://127.0.0.1:")[1].split()[0])


def test_nothing_is_left_of_a_script_that_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, COMBO, str(tmp_path / "runs")) as program:
        wait_until((tmp_path / "runs").exists, "a task runs")
        port = port_of(program)
        wait_until(lambda: len(program.living()) >= 6, "its other worker lives, too")
        os.kill(program.pid, signal.SIGKILL)
        program.process.wait()
        seconds = program.wait_gone()
        print(f"all gone {seconds:.2f} s after the kill of the script")
        wait_until(lambda: taken_port(range(port, port + 3)) is None, "the ports are free", 5 - seconds)
        assert "Traceback" not in program.said() + program.complained()


@pytest.mark.parametrize("moment", ["begin", "address", "connected", "submitted", "mapped"])
@pytest.mark.parametrize("group", [False, True], ids=["script", "group"])
def test_ctrl_c_ends_a_script(tmp_path: Path, moment: str, group: bool) -> None:
    interrupt(tmp_path, moment, group, random.Random(f"{moment} {group}").random() * 0.1)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(60))
def test_ctrl_c_ends_a_script_at_any_moment(tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    interrupt(tmp_path, "begin", moments.random() < 0.5, moments.random() * 1.5)


def interrupt(folder: Path, moment: str, group: bool, seconds: float) -> None:
    """Ctrl-C so long after the script has said this: it is interrupted or had ended, and says nothing else."""
    with started(folder, COMBO, str(folder / "runs")) as program:
        program.wait_for(moment)
        sleep_a_moment(seconds)
        if program.process.poll() is None:
            (os.killpg if group else os.kill)(program.pid, signal.SIGINT)
        code = program.process.wait(SECONDS)
        program.wait_gone()
        # Once the script is at its end the interpreter lets go of Ctrl-C itself.
        assert code in (0, 130) or (code == -signal.SIGINT and "end" in program.said()), program.complained()
        assert ("interrupted" in program.said()) == (code == 130)
        assert program.complained() == ""
        assert not any(noise in program.said() for noise in NO_NOISE), program.said()


CALLBACKS = """
import sys, threading
from scaler import Client
from support.gates import wait_at

called = threading.Event()
port = int(sys.argv[2])

def tell(future):
    called.set()
    print(client.submit(wait_at, port, "again").result(), len(future.result()), flush=True)

client = Client(sys.argv[1])
client.submit(lambda: "x" * 100_000).add_done_callback(tell)
client.submit(wait_at, port, "pending").add_done_callback(lambda future: print(future.cancelled(), flush=True))
called.wait()
print("end", flush=True)
"""


def test_the_interpreter_finishes_callbacks_at_its_end(tmp_path: Path, cluster: LocalCluster, gate: Gate) -> None:
    with started(tmp_path, CALLBACKS, cluster.address, str(gate.port)) as program:
        program.wait_for("end")
        arrivals = {arrival.value: arrival for arrival in (gate.arrive(), gate.arrive())}
        assert program.process.poll() is None
        arrivals["'again'"].let_go()
        assert program.process.wait(SECONDS) == 0
        assert program.said() == "end\nagain 100000\nTrue\n" and program.complained() == ""
        arrivals["'pending'"].wait_gone()


LATE = """
import sys, threading
from scaler import Client
from support.gates import wait_at

def say(value):
    sys.stdout.write(f"{value}\\n")  # in one piece: print writes the end of the line apart, and threads interleave
    sys.stdout.flush()

client = Client(sys.argv[1])
port = int(sys.argv[2])
client.submit(wait_at, port, "pending").add_done_callback(lambda future: say(future.cancelled()))

def work():
    threading.main_thread().join()
    future = client.submit(wait_at, port, "late")
    future.add_done_callback(lambda done: say("called"))
    say(future.result())

threading.Thread(target=work).start()

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

threading.Thread.start = refuse  # as Python 3.12 and later do from here on
say("end")
"""


def test_at_its_end_an_interpreter_needs_no_new_thread_for_callbacks(
    tmp_path: Path, cluster: LocalCluster, gate: Gate
) -> None:
    with started(tmp_path, LATE, cluster.address, str(gate.port)) as program:
        program.wait_for("end")
        arrivals = {arrival.value: arrival for arrival in (gate.arrive(), gate.arrive())}
        arrivals["'late'"].let_go()
        assert program.process.wait(SECONDS) == 0
        assert sorted(program.said().split()) == ["True", "called", "end", "late"] and program.complained() == ""
        arrivals["'pending'"].wait_gone()


# --- servers --------------------------------------------------------------------------------------------------------


def server_words(module: str, port: int, scheduler: str) -> list[str]:
    """The command line of a server on that port, or for that scheduler."""
    if module == "scaler_worker":
        return [module, scheduler, "-n", "2"]
    address = f"tcp://127.0.0.1:{port}"
    return [module, address, "--", address, "-n", "2"] if module == "scaler_launch.local" else [module, address]


SERVERS = ["scaler_scheduler", "scaler_worker", "scaler_storage", "scaler_launch.local"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
@pytest.mark.parametrize("module", SERVERS)
def test_a_server_ends_cleanly_at_any_moment(
    tmp_path: Path, cluster: LocalCluster, module: str, number: signal.Signals
) -> None:
    moments = random.Random(f"{module} {number}")
    for seconds in (0.0, moments.random() * 0.1, moments.random() * 0.3):
        end_server(tmp_path, cluster.address, module, number, seconds)


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
@pytest.mark.parametrize("module", SERVERS)
def test_a_server_ends_cleanly_at_very_many_moments(
    tmp_path: Path, cluster: LocalCluster, module: str, number: signal.Signals
) -> None:
    for step in range(100):
        end_server(tmp_path, cluster.address, module, number, step * 0.01)


def end_server(folder: Path, scheduler: str, module: str, number: signal.Signals, seconds: float) -> None:
    """A signal so long after the entry point was reached: exit code 0, nothing said, nothing left."""
    port = free_ports(3)
    with started(folder, *server_words(module, port, scheduler)) as program:
        wait_until(program.is_under_guard, "the entry point")
        sleep_a_moment(seconds)
        program.process.send_signal(number)
        code = program.process.wait(SECONDS)
        program.wait_gone()
        assert code == 0, (seconds, program.said(), program.complained())
        assert program.complained() == "", (seconds, program.complained())
        assert not any(noise in program.said() for noise in NO_NOISE), program.said()
        assert taken_port(range(port, port + 3)) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_a_second_signal_is_immediate(tmp_path: Path, number: signal.Signals) -> None:
    port = free_ports(3)
    with started(tmp_path, "scaler_scheduler", f"tcp://127.0.0.1:{port}") as program:
        wait_until(lambda: taken_port([port + 1]) is not None, "the storage server")
        (storage,) = descendants(program.pid)
        os.kill(storage, signal.SIGSTOP)  # now the scheduler waits for it, for seconds
        try:
            program.process.send_signal(number)
            wait_until(lambda: taken_port([port]) is None, "the scheduler has heard")
            assert program.process.poll() is None
            second = time.monotonic()
            program.process.send_signal(number)
            assert program.process.wait(SECONDS) == 128 + number
            assert time.monotonic() - second < 1
        finally:
            os.kill(storage, signal.SIGCONT)
        program.wait_gone()
        assert program.complained() == ""


# --- clients --------------------------------------------------------------------------------------------------------

PENDING = """
import sys
from scaler import Client, SchedulerClusterCombo
from support.fault_tasks import step
if len(sys.argv) > 2:
    address = sys.argv[2]
else:
    combo = SchedulerClusterCombo(n_workers=2, logging_level="WARNING")
    address = combo.get_address()
client = Client(address)
futures = [client.submit(step, sys.argv[1], number, 600) for number in range(100)]
futures[0].add_done_callback(print)
while not __import__("os").path.exists(sys.argv[1]):
    __import__("time").sleep(0.01)
print("end")
"""


@pytest.mark.parametrize("own", [False, True], ids=["services", "combo"])
def test_a_script_ends_although_futures_are_pending(tmp_path: Path, cluster: LocalCluster, own: bool) -> None:
    words = [str(tmp_path / "runs"), *([] if own else [cluster.address])]
    with started(tmp_path, PENDING, *words) as program:
        program.wait_for("end")
        ended = time.monotonic()
        assert program.process.wait(SECONDS) == 0
        assert time.monotonic() - ended < QUICKLY_SECONDS
        assert program.complained() == ""
        program.wait_gone()


FORK = """
import os, sys, warnings
from concurrent.futures import wait
from scaler import Client
from scaler_protocol.errors import ClientForkedError
from support.fault_tasks import step
client = Client(sys.argv[2])
pending = client.submit(step, sys.argv[1], 1, 0.3)
done = client.submit(step, sys.argv[1], 2, 0)
done.result()

def refused(call, *args):
    try:
        call(*args)
    except ClientForkedError:
        return True
    return False

warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads, from 3.12 on
child = os.fork()
if not child:
    says = [
        refused(client.submit, step, sys.argv[1], 3, 0),
        refused(client.map, step, [sys.argv[1]], [3], [0]),
        refused(pending.result),
        done.result()[0] == 2,
        refused(client.send_object, 1),
    ]
    own = Client(sys.argv[2])
    says.append(own.submit(step, sys.argv[1], 4, 0).result()[0] == 4)
    pending.cancel()
    client.disconnect()
    print("child", says)
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("status", status, pending.result()[0], client.submit(step, sys.argv[1], 5, 0).result()[0])
"""


def test_a_forked_client_says_so_and_the_parent_goes_on(tmp_path: Path, cluster: LocalCluster) -> None:
    with started(tmp_path, FORK, str(tmp_path / "runs"), cluster.address) as program:
        assert program.process.wait(SECONDS) == 0
        assert program.complained() == ""
        assert program.said().splitlines() == ["child [True, True, True, True, True, True]", "status 0 1 5"]


INTERRUPTED = """
import os, random, signal, sys, time
from scaler import Client
from support.fault_tasks import step
from support.tasks import add

client = Client(sys.argv[2])
rounds, seed = int(sys.argv[3]), int(sys.argv[4])
moments = random.Random(seed)

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
hit = 0
for turn in range(rounds):
    what = turn % 4
    try:
        signal.setitimer(signal.ITIMER_REAL, moments.random() * 0.02)
        try:
            if what == 0:
                client.submit(step, sys.argv[1], turn, 0.1).result()
            elif what == 1:
                client.map(add, range(3000), range(3000))
            elif what == 2:
                [future.result() for future in [client.submit(add, 1, 2) for _ in range(2000)]]
            else:
                client.map(step, [sys.argv[1]] * 5, range(5), [0.1] * 5)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        hit += 1
    assert client.submit(add, turn, 1).result(20) == turn + 1
    assert client.map(add, [1, 2], [3, 4]) == [4, 6]
client.disconnect()
print("hit", hit)
"""


@pytest.mark.parametrize("rounds", [60, pytest.param(5000, marks=pytest.mark.chaos)])
def test_a_client_is_usable_after_ctrl_c_at_any_moment(tmp_path: Path, cluster: LocalCluster, rounds: int) -> None:
    words = str(tmp_path / "runs"), cluster.address, str(rounds), "1"
    with started(tmp_path, INTERRUPTED, *words) as program:
        assert program.process.wait(SECONDS + rounds) == 0, program.complained()
        assert program.complained() == ""
        assert int(program.said().split()[1]) > rounds // 2
