"""The template: a small single-threaded process from which workers are forked.

The agent forks it before it has threads or sockets. If it is killed, the agent starts a new one as
a program of its own. It forks a worker per request, waits for its children and reports their
exits. It kills what the tasks of a worker have left behind when the worker has ended, and all
children when the agent has.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import types
from dataclasses import asdict, replace
from typing import Final, NoReturn

from scaler_io.descriptors import restore_limit
from scaler_io.interpreters import words_of
from scaler_io.service.process import become_subreaper, continue_after_parent
from scaler_protocol.gpus import VISIBLE
from scaler_worker.config import WorkerConfig
from scaler_worker.ipc.families import end_children, kill_children
from scaler_worker.ipc.shared_state import SharedState

REQUEST: Final = struct.Struct("=I")
"""Number of the worker to fork; its name and GPU follow as JSON, its descriptors are passed along."""
REPORT: Final = struct.Struct("=BIiiQ")
"""Kind, number of the worker, process id, wait status (or errno), peak memory in bytes."""
DESCRIPTORS: Final = 4
"""Passed with a request: those of WorkerDescriptors."""
WORKER_MODULE: Final = "scaler_worker.worker.process"
NESTING_MODULES: Final = ("scaler_client.api.client", "scaler_client.runtime.connection", "scaler_client.api.map")
FORKED: Final = 1
ENDED: Final = 2
NOT_FORKED: Final = 3
OOM_SCORE: Final = 500
"""Of workers; 0 is what other processes have, 1000 the most."""


class Template:
    """Forks workers and reports their exits."""

    def __init__(self, requests: socket.socket, lifeline: int, shared: SharedState, config: WorkerConfig) -> None:
        self._requests, self._lifeline, self._shared, self._config = requests, lifeline, shared, config
        self._numbers: dict[int, int] = {}
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Serve requests until the agent exits."""
        signal.set_wakeup_fd(self._wake[1])
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        poller = select.poll()
        poller.register(self._requests, select.POLLIN)
        poller.register(self._wake[0], select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._wake[0] in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake[0], 4096)
                self._reap()
            if self._requests.fileno() in ready and not self._request():
                return

    def _request(self) -> bool:
        request, descriptors, _, _ = socket.recv_fds(self._requests, 4096, DESCRIPTORS)
        if not request:
            return False
        (number,) = REQUEST.unpack_from(request)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            if len(descriptors) < DESCRIPTORS:  # the kernel drops descriptors beyond the limit
                raise OSError(errno.EMFILE, "")
            pid = os.fork()
        except OSError as error:
            self._report(NOT_FORKED, number, 0, error.errno or 0, 0)
        else:
            if not pid:
                name, gpu = json.loads(request[REQUEST.size :])
                self._become_worker(number, name, gpu, descriptors)
            self._numbers[pid] = number
            self._report(FORKED, number, pid, 0, 0)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _become_worker(self, number: int, name: str, gpu: str | None, descriptors: list[int]) -> NoReturn:
        self._requests.close()
        for descriptor in self._wake:
            os.close(descriptor)
        _offer_to_be_killed()
        from scaler_worker.worker.process import WorkerDescriptors, run_worker

        ends = WorkerDescriptors(*descriptors)
        config = self._config
        if gpu is not None:
            config = replace(config, environment=(*config.environment, (VISIBLE, gpu)))
        run_worker(ends, self._lifeline, self._shared, number, name, config)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (number := self._numbers.pop(pid, None)) is not None:
                self._report(ENDED, number, pid, status, usage.ru_maxrss * 1024)
            kill_children(self._numbers.__contains__)  # orphans of a worker that has ended

    def _report(self, kind: int, number: int, pid: int, status: int, memory: int) -> None:
        self._requests.send(REPORT.pack(kind, number, pid, status, memory))


def _offer_to_be_killed() -> None:
    """When the host runs out of memory, have the kernel kill workers before agents and other services: proc(5)."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(OOM_SCORE))


def run_template(requests: socket.socket, lifeline: int, shared: SharedState, config: WorkerConfig) -> NoReturn:
    """Run the template. Never returns."""
    code = 1
    try:
        become_subreaper()
        continue_after_parent()
        if config.descriptor_limit:
            restore_limit(config.descriptor_limit)  # the agent may have raised it meanwhile
        os.setpgid(0, 0)  # signals of the terminal go to the agent only
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # What tasks define or unpickle as __main__ must not find our entry point there.
        sys.modules["__main__"] = types.ModuleType("__main__")
        # The agent, which needs none of these, imports its own modules meanwhile. Tasks that submit tasks are common.
        for module in (WORKER_MODULE, *NESTING_MODULES):
            importlib.import_module(module)
        gc.collect()
        gc.freeze()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            Template(requests, lifeline, shared, config).serve()
        end_children()  # the agent has exited
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def spawn_arguments(requests: int, lifeline: int, shared: SharedState, config: WorkerConfig) -> tuple[str, ...]:
    """The arguments of a new template process that inherits these descriptors."""
    numbers = (requests, lifeline, shared.descriptor, shared.count)
    return (*words_of(__name__), *map(str, numbers), json.dumps(asdict(config)))


def main(arguments: list[str]) -> NoReturn:
    """Run a template with `spawn_arguments`."""
    requests, lifeline, shared, count = map(int, arguments[:4])
    config = WorkerConfig(**json.loads(arguments[4]))
    run_template(socket.socket(fileno=requests), lifeline, SharedState(shared, count), config)


if __name__ == "__main__":
    main(sys.argv[1:])
