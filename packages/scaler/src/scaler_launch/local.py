"""The scheduler and the agent of a local cluster: on one event loop, in one process.

Theory. Between processes a message wakes a thread of ZeroMQ here and one there, and is decided upon by a processor
that has yet to fetch another interpreter's code and data; within one it is handed over, and what an interpreter has
loaded is there once. Both are what they are in their own processes: they know of each other by messages alone, and
end together anyway, since nobody would start one of them again. Object storage stays a process: what it holds in
memory must not be the scheduler's.

It is started as `python -m scaler_launch.local <words of scaler_scheduler> [-- <words of scaler_cluster>]`; without
the latter there are no workers. With `--preload` the line that `--ready-fd` asks for comes once the first worker is
ready; where none can be, it is FAILED, and the reason follows up to the end of the pipe.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scaler_io.service.process import become_subreaper, ending, main_guard

if TYPE_CHECKING:
    from scaler_scheduler.service.options import SchedulerOptions
    from scaler_scheduler.service.storage_server import StorageServer
    from scaler_worker.config import ClusterConfig
    from scaler_worker.forking.template_link import Forking


FAILED = "failed"


def main() -> int:
    """Run the cluster that the command line describes until it is told to end; returns the exit code."""
    return main_guard("local cluster", _run)


def _run() -> int:
    from scaler_io import descriptors
    from scaler_io.service import event_loops
    from scaler_scheduler.service.options import COMMAND
    from scaler_scheduler.service.storage_server import StorageServer

    of_scheduler, of_cluster = _split(sys.argv[1:])
    options = COMMAND.read(of_scheduler)
    options.check()
    options = options.with_port()
    options.begin_log()
    with contextlib.ExitStack() as stack:
        # As early as can be: it takes as long to come up as all the rest.
        storage = StorageServer(options, options.address)
        stack.callback(storage.end)
        storage.start()
        workers = None
        if of_cluster:
            words = [str(options.address), *of_cluster[1:]]  # which may have come with port 0
            workers = stack.enter_context(_workers(words, options.ready_fd))
        descriptors.raise_limit()
        return event_loops.run(lambda: _serve(options, storage, workers), options.event_loop)


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


@contextlib.contextmanager
def _workers(words: Sequence[str], ready_fd: int | None) -> Iterator[tuple[ClusterConfig, Forking]]:
    """What agent and workers are told; the template is forked here, before there is a thread or a socket."""
    from scaler_worker.config import COMMAND

    config = COMMAND.read(words)
    from scaler_worker.forking.template_link import Forking
    from scaler_worker.worker.preload import Preload, PreloadError

    if config.preload is not None:
        try:
            Preload.parse(config.preload)
        except PreloadError as error:
            _tell(ready_fd, f"{FAILED}\n{error}")
            raise
    become_subreaper()
    with Forking.begin(config) as forking:
        yield config, forking


async def _serve(
    options: SchedulerOptions, storage: StorageServer, workers: tuple[ClusterConfig, Forking] | None
) -> int:
    """Serve until told to stop; returns the exit code."""
    from scaler_io.transport.in_process import InProcessListener
    from scaler_scheduler.service.shell import SchedulerService

    stop = ending(options.parent_pid)
    listener = InProcessListener(options.address)
    ready_fd = options.ready_fd
    waits = workers is not None and workers[0].preload is not None
    if waits:
        options = replace(options, ready_fd=None)

    def tell_started(failure: str) -> None:
        if waits:
            _tell(ready_fd, f"{FAILED}\n{failure}" if failure else f"{options.address}\n")

    with SchedulerService(options, listener, storage).serving(stop.set):
        if workers is None:
            await stop.wait()
            return 0
        from scaler_worker.agent.main import work

        # It ends first, because it uses the scheduler's listener.
        return await work(*workers, listener, stop, storage.is_ours, tell_started)


def _tell(ready_fd: int | None, text: str) -> None:
    """Tell the process that started us how the start went."""
    if ready_fd is not None:
        # It may have ended meanwhile; then we are about to be told.
        with contextlib.suppress(BrokenPipeError), os.fdopen(ready_fd, "wb") as ready:
            ready.write(text.encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main())
