"""Functions that workers run by name, some of which end their workers."""

from __future__ import annotations

import builtins
import ctypes
import math
import os
import pickle
import resource
import signal
import sys
import time
from pathlib import Path

from scaler import Client
from scaler_protocol.errors import SessionExhaustedError
from scaler_worker.ipc.frames import TaskColumns, unpack_tasks
from scaler_worker.worker import runner
from support.gates import SECONDS
from support.tasks import note
from support.waiting import wait_until


def step(path: str, number: int, seconds: float) -> tuple[int, int]:
    """Say in a file that it has run, take a while, and give the number and the process."""
    note(path, str(number))
    time.sleep(seconds)
    return number, os.getpid()


def bulky(number: int, size: int) -> tuple[int, bytes]:
    """The number and a result of that size."""
    return number, number.to_bytes(8, "big") * (size // 8)


def wait_a_moment(number: int) -> int:
    """A millisecond."""
    time.sleep(0.001)
    return number


def nested_sum(client: Client, number: int) -> int:
    """The sum of the numbers to this one, a task for each."""
    return number + client.submit(nested_sum, client, number - 1).result(SECONDS) if number else 0


def kill_itself(path: str) -> None:
    """SIGKILL to the worker."""
    note(path, "run")
    os.kill(os.getpid(), signal.SIGKILL)


def kill_agent(path: str) -> None:
    """SIGKILL to the agent, once its other workers are in the middle of something, and so to all of them."""
    note(path, "run")
    time.sleep(0.2)
    os.kill(_parent_of(os.getppid()), signal.SIGKILL)
    time.sleep(SECONDS)


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])


def stop_when_next_is_read() -> int:
    """The worker stops as soon as it has read its next task; its process."""

    def stop(datagram: bytes) -> TaskColumns:
        os.kill(os.getpid(), signal.SIGSTOP)
        return unpack_tasks(datagram)

    setattr(runner, unpack_tasks.__name__, stop)
    return os.getpid()


def leave_at_once(path: str) -> None:
    """The worker ends without a word."""
    note(path, "run")
    os._exit(7)


def lose_len(path: str) -> None:
    """The worker itself cannot go on."""
    note(path, "run")
    builtins.len = None  # type: ignore[assignment]


def break_pickle() -> str:
    """The worker can load no arguments any more."""
    pickle.loads = None  # type: ignore[assignment]
    return "done"


def leave_daemon(seconds: float) -> tuple[int, int]:
    """The worker, and a process of a session of its own, whose parent has ended, without any of its files."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        if daemon := os.fork():
            os.write(writer, str(daemon).encode())
            os._exit(0)
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))
        time.sleep(seconds)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader, encoding="ascii") as file:  # the daemon has closed its end
        return os.getpid(), int(file.read())


def crash(path: str) -> None:
    """A segmentation fault."""
    note(path, "run")
    ctypes.string_at(0)


def leave(path: str) -> None:
    """sys.exit in a task."""
    note(path, "run")
    sys.exit(3)


def wait_for_file(path: Path) -> int:
    """Wait until a file exists; 0."""
    wait_until(path.exists, str(path))
    return 0


def noted_total(path: str, number: int, seconds: float, *values: int) -> int:
    """Say in a file that it has run, take a while, and give the last digits of the sum."""
    note(path, str(number))
    if seconds:
        time.sleep(seconds)
    return (number + sum(values)) % 100_003


def noted_block(path: str, number: int, *values: bytes) -> bytes:
    """The same of numbers that are written again and again until they are too big for a message."""
    found = noted_total(path, number, 0.005, *(int.from_bytes(value[:8], "big") for value in values))
    return found.to_bytes(8, "big") * 10_000


_kept: list[int] = []


def keep_descriptors(*, fail: bool = False) -> str:
    """Open files until no more can be opened."""
    try:
        while True:
            _kept.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        if fail:
            raise
    return "done"


def use_up_task_ids() -> str:
    """As if tasks of this worker had submitted four billion tasks: see that the next one is refused."""
    with Client() as client:
        ids = client._io.ids
        ids._singles, ids._singles_from = [], ids._blocks_from
        try:
            client.submit(math.sqrt, 4)
        except SessionExhaustedError:
            return "done"
    return "the task was submitted"


def lower_limit() -> str:
    """Allow no more files to be opened."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return "done"


def lower_cpu_limit() -> str:
    """Allow no more than a second more of the processor."""
    soon = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soon, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    return "done"


class LeavingError(Exception):
    """A task has left something behind."""


ALARM_SECONDS = 0.3
"""Longer than a busy machine needs to end the task that sets the alarm."""


def leave_alarm() -> None:
    """A signal that ends the process comes soon."""
    signal.setitimer(signal.ITIMER_REAL, ALARM_SECONDS)
    raise LeavingError


def leave_handled_alarm() -> None:
    """A signal that raises comes soon."""

    def too_late(number: int, frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_late)
    leave_alarm()


def leave_closed_output() -> None:
    """As argparse.FileType("-") does."""
    sys.stdout.close()
    raise LeavingError


def leave_no_output() -> None:
    """Nothing can be printed."""
    sys.stdout = sys.stderr = None
    raise LeavingError


def print_a_while(number: int) -> int:
    """Print something, for longer than alarms take."""
    print(number)
    sys.stdout.flush()
    time.sleep(ALARM_SECONDS)
    return number


def open_files(number: int) -> int:
    """Need some files, for a while."""
    with open(os.devnull, "rb"), open(os.devnull, "rb"):
        time.sleep(0.005)
    return number


def forbid(limit: int) -> str:
    """Set one of the limits of this process to 0."""
    resource.setrlimit(limit, (0, resource.getrlimit(limit)[1]))
    return "done"


def become_nobody() -> str:
    """Give up all privileges permanently."""
    os.setgid(65534)
    os.setuid(65534)
    return "done"


def refuse_negative(number: int, path: str) -> int:
    """Fail for half of all numbers; the process that ran it. Each run leaves a line in a file."""
    note(path, str(number))
    if number < 0:
        raise ValueError(number)
    return os.getpid()


def root_of(number: int) -> float:
    """The square root, after a while."""
    time.sleep(0.002)
    return math.sqrt(number)
