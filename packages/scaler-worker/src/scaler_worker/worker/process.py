"""The worker process: set-up after the fork, the loop over datagrams, periodic maintenance."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import gc
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Final, NoReturn

from scaler_client import task_context
from scaler_client.payloads.user_exceptions import formatted, headline
from scaler_client.task_context import CurrentTask
from scaler_io.interpreters import WORKER_PATH
from scaler_io.objects.host_cache import HostCache
from scaler_io.service.process import become_subreaper
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.config import WorkerConfig
from scaler_worker.ipc.cells import SAMPLE_UNTIL
from scaler_worker.ipc.frames import DESCRIPTORS_LOST, PRELOAD_FAILED, RECEIVE_SIZE, REPLY
from scaler_worker.ipc.shared_state import SharedState
from scaler_worker.worker.agent_transport import AgentTransport
from scaler_worker.worker.coroutines import run_coroutine
from scaler_worker.worker.damage import Damage
from scaler_worker.worker.kept_output import KeptOutput
from scaler_worker.worker.leftovers import Leftovers, standard_stream
from scaler_worker.worker.object_store import ObjectRuntime, WorkerObjectStore
from scaler_worker.worker.ordered_replies import OrderedReplies
from scaler_worker.worker.output import CapturedOutput
from scaler_worker.worker.preload import Preload
from scaler_worker.worker.result_pipe import ResultPipe
from scaler_worker.worker.runner import CALLING_CODE, RetiredError, Runner
from scaler_worker.worker.sampler import Sampler

OBJECT_SECONDS: Final = 1.0
"""Idle time of cached objects: they are evicted after one to two times this."""
FUNCTION_SECONDS: Final = 300.0
"""Idle time of cached functions: they are evicted after one to two times this."""
EXAMINE_SECONDS: Final = 0.05
LONG_SECONDS: Final = 0.001
"""The process is examined for damage every EXAMINE_SECONDS and after each datagram that takes LONG_SECONDS."""
_ONE_DESCRIPTOR: Final = socket.CMSG_SPACE(4)


@dataclass(frozen=True, slots=True)
class WorkerDescriptors:
    """A worker's descriptors."""

    tasks: int
    results: int
    messages: int
    faults: int
    _files: list[tuple[int, int] | None] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._files.extend(self._now())

    def are_lost(self) -> bool:
        """Whether a task has closed or replaced `tasks` or `results`."""
        return self._now() != self._files

    def _now(self) -> list[tuple[int, int] | None]:
        return [_file_of(number) for number in (self.tasks, self.results)]


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class WorkerRuntime(ObjectRuntime):
    """The runtime that `scaler_client.task_context` offers to tasks."""

    def __init__(
        self,
        runner: Runner,
        transport: AgentTransport,
        storage: WorkerObjectStore,
        shared: SharedState,
        damage: Damage,
        leftovers: Leftovers,
    ) -> None:
        super().__init__(storage)
        self._runner, self._transport, self._shared = runner, transport, shared
        self._damage, self._leftovers = damage, leftovers

    @property
    def inputs(self) -> Mapping[int, tuple[bool, bytes]]:
        """By task id, the inputs of the current run: whether stored, and the payload or its reference."""
        return self._runner.inputs

    def current(self) -> CurrentTask | None:
        """The current task; None between tasks."""
        return self._runner.current()

    @property
    def scheduler(self) -> int:
        """The incarnation of the scheduler that this process works for; 0 before the first connection."""
        return self._shared.scheduler

    def retire(self, why: str) -> None:
        """Run no more tasks in this process after the current one; `why` is logged."""
        self._runner.asked_to_end = why
        self._damage.report(why)
        self._leftovers.note()  # so that the process is examined after this run

    def connect(self) -> AgentTransport:
        """The channel to the agent; the previous owner has ended."""
        return self._transport.taken_over()


def use_path_of_caller() -> None:
    """Search modules first where the program that started this one says; in a local cluster, work in its directory."""
    if path := os.environ.get(WORKER_PATH):
        theirs = path.split(os.pathsep)
        sys.path[:] = theirs + [entry for entry in sys.path if entry not in theirs]
    if directory := os.environ.get("SCALER_WORKER_DIRECTORY"):
        os.chdir(directory)


def _object_store(config: WorkerConfig, shared: SharedState, name: str) -> WorkerObjectStore:
    """The connection to object storage."""
    keys = Path(config.keys) if config.keys else None
    return WorkerObjectStore(
        lambda: config.object_storage_address or shared.storage,
        shared.secret,
        name,
        cache=_cache(config),
        keys=keys,
        token=lambda: shared.token,
    )


def _kept_output(config: WorkerConfig, name: str, runner: Callable[[], Runner]) -> KeptOutput:
    return KeptOutput(
        config.output_limit,
        name,
        socket.gethostname(),
        lambda: runner().run_and_task,
        lambda stream, run, text: runner().write_output(stream, run, text),
        as_json=config.json_output,
    )


def _watch_for_profiles(shared: SharedState, number: int, runner: Callable[[], Runner]) -> None:
    Sampler(
        lambda: int(shared.cells(number)[SAMPLE_UNTIL]),
        CALLING_CODE,
        lambda: runner().function,
        lambda until, text: runner().send_samples(until, text),
    ).watch()


def run_worker(
    ends: WorkerDescriptors, lifeline: int, shared: SharedState, number: int, name: str, config: WorkerConfig
) -> NoReturn:
    """Run a worker until the agent closes the channel. Called in a freshly forked process; never returns."""
    code = 1
    try:
        _become_worker(ends, lifeline, config.environment)
        pipe = ResultPipe(ends.results, ends.faults)
        use_path_of_caller()
        if not _preload(config, pipe):
            os._exit(1)
        storage = _object_store(config, shared, name)
        output = _kept_output(config, name, lambda: runner)
        sys.stdout, sys.stderr = output.stream(1), output.stream(2)
        _watch_for_profiles(shared, number, lambda: runner)
        leftovers = Leftovers(output.stream)
        replies, damage = OrderedReplies(pipe.write), Damage(ends.faults, leftovers.undo)
        runner = Runner(
            name=name,
            host=socket.gethostname(),
            number=number,
            pid=os.getpid(),
            cells=shared.cells(number),
            replies=replies,
            capture=CapturedOutput,
            finish=run_coroutine,
            clock=time.monotonic_ns,
            cpu_clock=time.process_time_ns,
            peak_memory=_peak_memory,
            damage=damage.find,
            may_have_changed=leftovers.may_have_changed,
            store=storage,
            output=output,
            allow_functions=config.allow_functions,
        )
        transport = AgentTransport(socket.socket(fileno=ends.messages))
        task_context.install(WorkerRuntime(runner, transport, storage, shared, damage, leftovers))
        os.register_at_fork(after_in_child=lambda: runner.become_fork(_end_fork))
        leftovers.watch()
        runner.ready()
        with contextlib.suppress(RetiredError):
            _work(runner, storage, ends, config)
        replies.finish()
        code = 0
    except BaseException as error:
        code = _exit_code(error, ends)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


def _exit_code(error: BaseException, ends: WorkerDescriptors) -> int:
    """The exit code after an error; the traceback of an unexpected one is the last words of this process."""
    if ends.are_lost():
        return DESCRIPTORS_LOST
    if isinstance(error, BrokenPipeError):  # the agent has exited
        return 0
    sys.stderr = standard_stream(ends.faults)
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def _end_fork() -> NoReturn:
    """Exit a process that a task forked and that returned from the task: only its parent writes the reply."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"process {os.getpid()} was forked by a task and returned from it; it ends here\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)


def _cache(config: WorkerConfig) -> HostCache | None:
    return HostCache(Path(config.object_cache), config.object_cache_limit) if config.object_cache_limit else None


def _become_worker(ends: WorkerDescriptors, lifeline: int, environment: Iterable[tuple[str, str]]) -> None:
    os.environ.update(environment)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has SIGHUP ignored
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    become_subreaper()  # so that orphans of tasks count, and end, with this process
    _die_with(lifeline)
    if sys.version_info >= (3, 14):  # its stack of C comes last, and the end is what is shown
        faulthandler.enable(ends.faults, c_stack=False)
    else:
        faulthandler.enable(ends.faults)
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    for descriptor, stream in ((1, "stdout"), (2, "stderr")):
        setattr(sys, stream, standard_stream(descriptor))
        setattr(sys, f"__{stream}__", getattr(sys, stream))
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    os.close(devnull)


def _die_with(lifeline: int) -> None:
    """Have the kernel send SIGKILL when the last writer closes a pipe: the agent holds the only one.

    The signal goes to this process and to the process group that it leads. PR_SET_PDEATHSIG would react to the death of
    the template, which workers outlive.
    """
    for owner in (os.getpid(), -os.getpid()):
        # A file description of our own, since the signal goes to its owner.
        descriptor = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, owner)
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if not os.read(descriptor, 1):
            os._exit(1)


def _preload(config: WorkerConfig, pipe: ResultPipe) -> bool:
    if config.preload is None:
        return True
    try:
        Preload.parse(config.preload).run()
    except BaseException as error:
        reason = f"preload {config.preload} failed: {headline(error)}\n{formatted(error)}"
        text = reason.rstrip().encode("utf-8", "replace")
        pipe.write(REPLY.pack(PRELOAD_FAILED, 0, len(text), *[0] * 9) + text)
        return False
    return True


def _work(runner: Runner, storage: WorkerObjectStore, ends: WorkerDescriptors, config: WorkerConfig) -> None:
    tasks = socket.socket(fileno=ends.tasks)
    maintenance = _Maintenance(runner, storage, config)
    receive, take, clock, limit = tasks.recvmsg, runner.take, time.monotonic, 0.0
    while True:
        if limit != maintenance.seconds:
            limit = maintenance.seconds
            _limit_waiting(tasks, limit)
        try:
            datagram, ancillary, _, _ = receive(RECEIVE_SIZE, _ONE_DESCRIPTOR)
        except BlockingIOError:
            maintenance.do(clock())
        except KeyboardInterrupt:
            continue
        else:
            if not datagram:
                return
            began = clock()
            take(read_memory_file(ancillary) if ancillary else datagram)
            maintenance.do_after_work(began, clock())


class _Maintenance:
    """Periodic maintenance between datagrams; `seconds` is how long the worker may wait for a datagram."""

    def __init__(self, runner: Runner, storage: WorkerObjectStore, config: WorkerConfig) -> None:
        self._runner, self._storage = runner, storage
        self._interval = self.seconds = config.garbage_collect_interval_seconds
        self._threshold = config.trim_memory_threshold_bytes
        self._worked = False
        self._forget_at = self._examine_at = 0.0
        now = time.monotonic()
        self._collect_at, self._functions_at = now + self._interval, now + FUNCTION_SECONDS

    def do_after_work(self, began: float, now: float) -> None:
        """Do the maintenance due after a datagram; raises RetiredError if a task has damaged this process."""
        self._worked = True
        if now >= self._examine_at or now >= began + LONG_SECONDS:
            self._runner.examine()
            self._examine_at = now + EXAMINE_SECONDS
        self.do(now)

    def do(self, now: float) -> None:
        """Do the maintenance that is due."""
        if self._storage.keeping and now >= self._forget_at:
            self._storage.forget_unused()
            self._forget_at = now + OBJECT_SECONDS
        self.seconds = min(self._interval, OBJECT_SECONDS) if self._storage.keeping else self._interval
        if now >= self._functions_at:
            self._worked |= self._runner.forget_unused()
            self._functions_at = now + FUNCTION_SECONDS
        if now >= self._collect_at:
            if self._worked:
                collect_garbage(self._threshold)
            self._collect_at, self._worked = time.monotonic() + self._interval, False


def _limit_waiting(tasks: socket.socket, interval: float) -> None:
    """Set the receive timeout in the kernel, which costs nothing per datagram, unlike socket.settimeout."""
    seconds = int(interval)
    timeval = seconds.to_bytes(8, sys.byteorder) + int((interval - seconds) * 1e6).to_bytes(8, sys.byteorder)
    tasks.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)


def read_memory_file(ancillary: list[tuple[int, int, bytes]]) -> bytes:
    """Read the datagram that was passed as a memory file."""
    descriptor = int.from_bytes(ancillary[0][2][:4], sys.byteorder)
    try:
        size = os.fstat(descriptor).st_size
        pieces, at = [], 0
        while at < size:
            pieces.append(os.pread(descriptor, size - at, at))
            at += len(pieces[-1])
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def collect_garbage(threshold: int) -> None:
    """Collect garbage, and give free memory back to the system if more than `threshold` bytes are resident."""
    gc.collect()
    with open("/proc/self/statm", "rb") as file:
        used = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if used > threshold:
        import ctypes

        with contextlib.suppress(AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
