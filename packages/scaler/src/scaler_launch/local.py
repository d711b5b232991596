"""The scheduler and the agent of a local cluster: on one event loop, in one process.

One process needs less time and memory than two: a message between processes wakes a ZeroMQ thread in each of them, and
both load an interpreter. Scheduler and agent still communicate only by messages, as in separate processes. They end
together in any case, because nothing in a local cluster would restart one of them. Object storage is a separate
process, so that the memory of its objects is not that of the scheduler; it begins as a fork, which saves most of its
imports, and is a program of its own when it has to be started again.

Start it as `python -m scaler_launch.local <options of scaler_scheduler> [-- <options of scaler_cluster>]`; without the
latter there are no workers. With `--preload` the line for `--ready-fd` is written when the first worker is ready; if
no worker can be, the line is FAILED, and the reason follows up to the end of the pipe.
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
    from scaler_io.service.forked_program import ForkedProgram
    from scaler_scheduler.service.options import SchedulerOptions
    from scaler_scheduler.service.storage_server import StorageServer
    from scaler_worker.config import ClusterConfig
    from scaler_worker.forking.template_link import Forking


FAILED = "failed"


def main() -> int:
    """Run the cluster of the command line until a signal; returns the exit code."""
    return main_guard("local cluster", _run)


def _run() -> int:
    from scaler_io import descriptors
    from scaler_io.service import event_loops
    from scaler_scheduler.service.options import COMMAND

    of_scheduler, of_cluster = _split(sys.argv[1:])
    options = COMMAND.read(of_scheduler)
    options.check()
    options = options.with_port()
    options.begin_log()
    with contextlib.ExitStack() as stack:
        workers = None
        if of_cluster:
            words = [str(options.address), *of_cluster[1:]]  # the address may have been given with port 0
            workers = stack.enter_context(_workers(words, options.ready_fd))
        _import_asyncio()  # after the fork of the template: tasks may use TLS
        from scaler_scheduler.service.storage_server import StorageServer

        storage = StorageServer(options, options.address)
        stack.callback(storage.end)
        storage.start(_fork_storage)
        descriptors.raise_limit()
        return event_loops.run(lambda: _serve(options, storage, workers), options.event_loop)


def _import_asyncio() -> None:
    """Import asyncio without TLS, which no link of ours uses: OpenSSL takes 2 MB, and 10 ms before the first result.

    What imports OpenSSL later has it, for example to send a webhook by HTTPS.
    """
    if "_ssl" in sys.modules:
        return
    sys.modules["_ssl"] = None  # type: ignore[assignment]  # cannot be imported
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["_ssl"]


def _fork_storage(words: Sequence[str]) -> ForkedProgram:
    """Start object storage in a fork: most of what it imports is needed here, too. It imports its engine meanwhile."""
    import scaler_io.objects.connection  # noqa: F401  # once for both
    import scaler_io.service.server_loop  # noqa: F401
    from scaler_io.service.forked_program import ForkedProgram
    from scaler_storage.__main__ import PROGRAM, serve
    from scaler_storage.options import COMMAND

    options = COMMAND.parse(words)
    return ForkedProgram("scaler_storage", words, lambda: main_guard(PROGRAM, lambda: serve(options)))


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


@contextlib.contextmanager
def _workers(words: Sequence[str], ready_fd: int | None) -> Iterator[tuple[ClusterConfig, Forking]]:
    """The configuration of agent and workers, and the template, which is forked before any thread or socket exists."""
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
    """Serve until a signal; returns the exit code."""
    from scaler_io.security.keyring import ANYONE, CLIENT_KEYS, WORKER_KEYS
    from scaler_io.transport.in_process import InProcessListener
    from scaler_io.transport.own_keys import local_socket
    from scaler_scheduler.service.shell import SchedulerService

    def end_at_once() -> None:
        from scaler_worker.ipc.families import end_children

        end_children(storage.is_ours)  # which ends with this process

    stop = ending(options.parent_pid, at_once=end_at_once if workers is not None else None)
    workers_key = options.credentials(WORKER_KEYS) if workers is not None else None
    holder = workers_key.holder if workers_key is not None else ANYONE
    path, client = local_socket(options.address, options.keys, options.insecure), options.credentials(CLIENT_KEYS)
    authorized, local = options.authorized(), None
    if path is not None and client is not None and authorized is not None and authorized.accepts(client.holder):
        local = path, client.holder
    listener = InProcessListener(options.address, authorized, holder, local)
    ready_fd = options.ready_fd
    waits = workers is not None and workers[0].preload is not None
    if waits:
        options = replace(options, ready_fd=None)

    def tell_started(failure: str) -> None:
        if waits:
            _tell(ready_fd, f"{FAILED}\n{failure}" if failure else f"{options.address}\n")

    with SchedulerService(options, listener, storage, ends_cluster=True).serving(stop.set):
        if workers is None:
            await stop.wait()
            return 0
        from scaler_worker.agent.main import work

        # It ends first, because it uses the scheduler's listener.
        return await work(*workers, listener, stop, storage.is_ours, tell_started)


def _tell(ready_fd: int | None, text: str) -> None:
    """Report the result of the start to the parent process."""
    if ready_fd is not None:
        # The parent may have ended; then this process receives a signal soon.
        with contextlib.suppress(BrokenPipeError), os.fdopen(ready_fd, "wb") as ready:
            ready.write(text.encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main())
