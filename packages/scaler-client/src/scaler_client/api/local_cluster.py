"""A cluster on this host: one process for scheduler and agent, one for object storage, and worker processes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from scaler_client.api.resize_link import ResizeLink
from scaler_client.interrupts import interrupts_blocked
from scaler_client.notebook import Card, ShownInNotebooks, dashboard_row, monitor_of, served_pages
from scaler_client.parameters import check, timeout_of
from scaler_io.interpreters import WORKER_PATH, words_of
from scaler_io.ports import free_port, is_free
from scaler_io.reentrant_lock import ReentrantLock
from scaler_io.security.key_files import KEYS_VARIABLE, key_directory

if TYPE_CHECKING:
    from scaler_client.api.local_cluster_options import LocalClusterConfig

START_SECONDS = 60.0
PRELOAD_SECONDS = 600.0
"""How long the first worker may take to run its preload."""
END_SECONDS = 5.0
"""How long a service may take to end before it is killed."""
_TRIES = 5
_FAILED = b"failed\n"
"""`scaler_launch.local` writes this instead of an address if no worker could be started; the reason follows."""


class SchedulerClusterCombo(ShownInNotebooks):
    """A cluster on this host with `n_workers` workers; also a context manager.

    The constructor returns when the scheduler can be reached; with a `preload`, when the first worker has run it. The
    cluster ends with `shutdown`, or with this process, however that ends. Parameters are those of `scaler_scheduler`
    and `scaler_cluster` (docs/command-line.md); sizes are in bytes.

    Args:
        n_workers: number of worker processes, 0 to 4,096.
        address, object_storage_address, monitor_address: where the services listen; free ports on loopback by default.
        per_worker_capabilities: what each worker offers, by name; -1 for presence, otherwise a quantity.
        gpus: give each worker a GPU of its own, which it offers as `gpu=1`: `"auto"`, or numbers and UUIDs; workers
            beyond their number see none.
        host_capabilities: quantities that the workers have together; a task that requires some takes it while it runs.
        max_number_of_tasks_waiting: clients wait before they submit more than this and one task for each worker; -1 for
            no limit.
        heartbeat_interval_seconds: interval at which the workers' host reports to the scheduler.
        client_timeout_seconds, worker_timeout_seconds: how long a client or host may be unreachable before it is lost.
        object_retention_seconds: how long results are kept for a client that is unreachable.
        task_timeout_seconds: the default limit of a run; 0 for none.
        death_timeout_seconds: how long workers wait for a lost scheduler before they end.
        garbage_collect_interval_seconds, trim_memory_threshold_bytes: when workers collect garbage and free memory.
        memory_limit_per_worker: bytes of memory that one task may use; it is stopped beyond, and 0 is no limit. Here
            and elsewhere `"4GB"` and `"512MiB"` are numbers of bytes, too.
        threads_per_worker: threads of OpenMP and BLAS libraries in each worker, 0 to leave it to them; None for one,
            or what the environment says (`OMP_NUM_THREADS`, …).
        output_limit_per_task: bytes of what a task prints that are shown on its page and by `scaler_why`, at most
            64 KiB; 0 for none.
        per_worker_task_queue_size, per_worker_queue_size: tasks that a worker holds at most.
        protected: whether `Client.shutdown` is refused.
        event_loop: `"builtin"` or `"uvloop"`.
        logging_paths, logging_level, logging_config_file: where and what the services log.
        allocate_policy: `"even_load"` or `"capability"`.
        preload: what each worker runs when it starts, `module:function`.
        memory_limit, segment_directory, spill_directory, spill_limit: bytes of stored objects in memory, where they
            are, and where and how many bytes of them may be moved to disk.
        journal, journal_sync: the file in which accepted work is recorded, and from which it continues; `"normal"` or
            `"full"` (docs/durability.md).
        dashboard: whether to serve the pages of `scaler_ui` too, on loopback with a login: see `dashboard_link`.
        worker_io_threads, scheduler_io_threads, load_balance_seconds, load_balance_trigger_times: without effect, for
            older programs; only the defaults are accepted.
        hard_processor_suspend, scaler_policy, worker_manager_id, security_config: the same.

    Raises:
        AddressError, CapabilityError, ValueError, TypeError: a parameter is invalid; the message names it.
        ImportError: the distribution `scaler` is not installed, or `dashboard` without scaler-ui.
        RuntimeError: the scheduler cannot start, or the preload fails.
        TimeoutError: the scheduler is not ready within 60 seconds, or the preload takes more than ten minutes.

    >>> with SchedulerClusterCombo(n_workers=1, logging_level="ERROR") as cluster:
    ...     cluster.get_address().startswith("tcp://127.0.0.1:")
    True
    """

    def __init__(
        self,
        n_workers: int,
        address: str | None = None,
        object_storage_address: str | None = None,
        monitor_address: str | None = None,
        per_worker_capabilities: Mapping[str, int] | None = None,
        worker_io_threads: int = 1,
        scheduler_io_threads: int = 1,
        max_number_of_tasks_waiting: int = -1,
        heartbeat_interval_seconds: float = 2,
        client_timeout_seconds: float = 60,
        worker_timeout_seconds: float = 60,
        object_retention_seconds: float = 60,
        task_timeout_seconds: float = 0,
        death_timeout_seconds: float = 300,
        load_balance_seconds: float = 1,
        load_balance_trigger_times: int = 2,
        garbage_collect_interval_seconds: float = 30,
        trim_memory_threshold_bytes: int | str = 1024**3,
        per_worker_task_queue_size: int = 1000,
        hard_processor_suspend: bool = False,
        protected: bool = True,
        scaler_policy: None = None,
        event_loop: str = "builtin",
        logging_paths: Sequence[str] = ("/dev/stderr",),
        logging_level: str = "WARNING",
        logging_config_file: str | None = None,
        worker_manager_id: str = "combo",
        security_config: None = None,
        *,
        allocate_policy: str = "even_load",
        preload: str | None = None,
        per_worker_queue_size: int | None = None,
        memory_limit: int | str | None = None,
        segment_directory: str | os.PathLike[str] | None = None,
        spill_directory: str | os.PathLike[str] | None = None,
        spill_limit: int | str | None = None,
        memory_limit_per_worker: int | str = 0,
        threads_per_worker: int | None = None,
        host_capabilities: Mapping[str, int] | None = None,
        gpus: str | Sequence[int | str] | None = None,
        output_limit_per_task: int | str = 0,
        journal: str | os.PathLike[str] | None = None,
        journal_sync: str = "normal",
        dashboard: bool = False,
    ) -> None:
        self._config = _checked({name: value for name, value in locals().items() if name != "self"})
        self._begin()

    def _begin(self) -> None:
        self._services: list[subprocess.Popen[bytes]] = []
        self._links: list[ResizeLink] = []
        """The link to the agent, if there is one; a cluster without workers has none before it is scaled."""
        self._scaling = ReentrantLock()
        """Who holds it changes the cluster; a signal handler may do so within `scale`."""
        self._latest: object = None
        """The latest call of `scale`."""
        self._ending = False
        self._forget_pages: Callable[[], object] = lambda: None
        self._end = weakref.finalize(self, _end_services, self._services, self._links, os.getpid())
        try:
            self._address = self._start(self._config)
            if self._config.dashboard:
                self._serve_pages(self._address)
        except BaseException:
            self.shutdown()
            raise

    def get_address(self) -> str:
        """The address of the scheduler, for `Client(address=…)`.

        >>> cluster.get_address().startswith("tcp://127.0.0.1:")
        True
        """
        return self._address

    def scale(self, n: int, timeout: float = 60) -> None:
        """Have `n` workers; returns when it is so.

        More workers are started at once. Surplus workers take no more tasks and end after those that they run; tasks
        that wait are run by the others, or wait for workers. A later call, also of another thread, replaces an earlier
        one.

        Args:
            n: number of worker processes, 0 to 4,096.
            timeout: seconds to wait.

        Raises:
            TimeoutError: it is not so within `timeout` seconds, as tasks still run; the cluster goes on to scale.
            ValueError: a parameter is invalid.
            RuntimeError: the cluster has ended, no worker can be started, or a later call has replaced this one.

        >>> cluster.scale(2)
        """
        from scaler_client.api.local_cluster_options import WORKERS

        check("n", n, WORKERS)
        timeout = timeout_of("timeout", timeout)
        call = self._latest = object()
        _wake(self._links)
        with self._scaling:
            self._check_wanted(call, n)
            self._config = replace(self._config, n_workers=n)
            if not self._links and n:
                self._run_agent()
            try:
                done = all(link.resize(n, timeout, lambda: self._is_wanted(call)) for link in self._links)
            except (OSError, ValueError):  # the other end is closed, or this one by a shutdown
                _close(self._links)
                self._check_wanted(call, n)
                raise RuntimeError(f"the agent has ended, so there are no {n} workers: it has logged why") from None
        if not done:
            self._check_wanted(call, n)
            raise TimeoutError(
                f"the local cluster does not have {n} workers after {timeout:g} s: a worker that is to end finishes its"
                f" task first, and one that starts runs its preload first; scale({n}) waits again"
            )

    def _is_wanted(self, call: object) -> bool:
        return self._latest is call and not self._ending

    def _check_wanted(self, call: object, n: int) -> None:
        """Raise RuntimeError if a call of `scale` cannot be done any more, or shall not."""
        if self._ending or not self._end.alive or self._services[0].poll() is not None:
            raise RuntimeError("the local cluster has ended and cannot be scaled: make another one")
        if not self._is_wanted(call):
            raise RuntimeError(f"scale({n}) is not waited for any more: a later call of scale() has replaced it")

    def shutdown(self) -> None:
        """End the cluster; returns when its processes have ended. May be called again.

        >>> SchedulerClusterCombo(n_workers=0, logging_level="ERROR").shutdown()
        """
        self._ending = True
        _wake(self._links)
        with self._scaling:
            self._end()
        self._forget_pages()

    @property
    def dashboard_link(self) -> str | None:
        """Where the pages are, with the token that lets in; they take some seconds to start. None without `dashboard`.

        >>> cluster.dashboard_link is None
        True
        """
        return served_pages.get(self._address)

    def _card(self) -> Card:
        alive = [str(service.pid) for service in self._services if service.poll() is None]
        rows = {
            "scheduler": self._address,
            "workers": str(self._config.n_workers),
            "processes": ", ".join(alive),
            "pages": dashboard_row(self._address),
            "to watch it": f"scaler_top {self._config.monitor_address or monitor_of(self._address)}",
        }
        return Card("Scaler cluster", "running" if alive else "ended", rows, is_final=not alive)

    def __enter__(self) -> SchedulerClusterCombo:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()

    def _start(self, config: LocalClusterConfig) -> str:
        """Start the services and wait for the scheduler; returns its address."""
        if importlib.util.find_spec("scaler_launch") is None:
            remedy = "its services run on Linux: start them there" if sys.platform == "win32" else "pip install scaler"
            raise ImportError(f"a local cluster needs scaler_launch, which is not installed: {remedy}")
        if config.dashboard and importlib.util.find_spec("scaler_ui") is None:
            raise ImportError("dashboard=True needs scaler_ui, which is not installed: pip install scaler")
        address = config.address
        for attempt in range(1, _TRIES + 1):
            wanted = address or f"tcp://127.0.0.1:{free_port()}"
            ready = self._run_cluster(wanted)
            with interrupts_blocked(), contextlib.suppress(ImportError):
                import scaler_client.runtime.connection  # noqa: F401  # imports while the services start
            preload = config.preload if config.n_workers else None
            found, failure = _read_ready(ready, preload)
            if failure:
                raise RuntimeError(f"no worker could be started: {failure}")
            if found:
                return found
            code = self._services[0].wait(END_SECONDS)
            if address is not None or attempt == _TRIES or is_free(int(wanted.rpartition(":")[2])):
                raise RuntimeError(
                    f"the scheduler at {wanted} ended at once, with exit code {code}: it has logged the reason above"
                )
            _end_services(self._services, self._links, os.getpid())  # another process took the port meanwhile
        raise AssertionError

    def _run_cluster(self, address: str) -> int:
        """Start scheduler and agent in one process; returns the descriptor on which it reports the start."""
        ready, tell = os.pipe()
        words = [address, *self._config.scheduler_options(), "--ready-fd", str(tell)]
        words += ["--parent-pid", str(os.getpid())]
        try:
            if self._config.n_workers:
                with self._linked() as link:
                    agent = [address, *self._config.cluster_options(), "--resize-fd", str(link)]
                    self._run("scaler_launch.local", [*words, "--", *agent], tell, link)
            else:
                self._run("scaler_launch.local", words, tell)
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(tell)
        return ready

    def _run_agent(self) -> None:
        """Start an agent as a process of its own."""
        with self._linked() as link:
            words = [self._address, *self._config.cluster_options(), "--resize-fd", str(link)]
            self._run("scaler_worker", [*words, "--parent-pid", str(os.getpid())], link)

    def _serve_pages(self, address: str) -> None:
        """Start scaler_ui at a free port."""
        port, token = free_port(), os.urandom(16).hex()
        words = [self._config.monitor_address or monitor_of(address), "--port", str(port)]
        words += ["--parent-pid", str(os.getpid())]
        self._run("scaler_ui", words, stdout=subprocess.DEVNULL, SCALER_UI_TOKEN=token)  # it says where the pages are
        served_pages[address] = f"http://127.0.0.1:{port}/?token={token}"
        self._forget_pages = weakref.finalize(self, served_pages.pop, address, None)

    @contextlib.contextmanager
    def _linked(self) -> Iterator[int]:
        """A new link to an agent, and the descriptor that its process is to inherit."""
        link = ResizeLink()
        self._links.append(link)
        try:
            yield link.theirs.fileno()
        finally:
            link.theirs.close()

    def _run(
        self, module: str, words: Sequence[str], *descriptors: int, stdout: int | None = None, **environment: str
    ) -> None:
        with interrupts_blocked():  # until it can handle the signal that ends it
            self._services.append(
                subprocess.Popen(
                    [sys.executable, *words_of(module), *words],
                    env={**os.environ, **_worker_environment(), **environment},
                    cwd=os.sep,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    start_new_session=True,
                    pass_fds=descriptors,
                )
            )


def _checked(parameters: Mapping[str, Any]) -> LocalClusterConfig:
    with interrupts_blocked():
        from scaler_client.api.local_cluster_options import LocalClusterConfig  # keeps `import scaler` light

    return LocalClusterConfig.of(parameters)


def _worker_environment() -> dict[str, str]:
    directory = os.getcwd()
    path = os.pathsep.join(os.path.join(directory, entry) for entry in sys.path)
    environment = {WORKER_PATH: path, "SCALER_WORKER_DIRECTORY": directory}
    if keys := os.environ.get(KEYS_VARIABLE):  # services run in another directory
        environment[KEYS_VARIABLE] = str(key_directory(keys))
    return environment


def _read_ready(descriptor: int, preload: str | None) -> tuple[str, str]:
    """The scheduler's address, empty if it ended, and the reason why no worker started, if any; raises TimeoutError."""
    text, seconds = b"", START_SECONDS if preload is None else PRELOAD_SECONDS
    until = time.monotonic() + seconds
    with os.fdopen(descriptor, "rb", buffering=0) as pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)  # select.select() refuses descriptors above 1,023
        # An address is one line; a failure ends with the pipe.
        while not text.endswith(b"\n") or text.startswith(_FAILED):
            if not selector.select(max(0.0, until - time.monotonic())):
                what = "the scheduler was not ready" if preload is None else f"no worker has run preload {preload}"
                raise TimeoutError(f"{what} within {seconds:g} s")
            piece = pipe.read(4096)
            if not piece:
                break
            text += piece
    if text.startswith(_FAILED):
        return "", text.removeprefix(_FAILED).decode("utf-8", "replace").strip()
    return (text.decode().strip() if text.endswith(b"\n") else ""), ""


def _end_services(services: list[subprocess.Popen[bytes]], links: list[ResizeLink], owner: int) -> None:
    """End the processes that process `owner` has started, the last one first; does nothing in a fork of it."""
    if os.getpid() != owner:
        return
    until = time.monotonic() + END_SECONDS
    # One after the other: workers that lose their scheduler would log it.
    for service in reversed(services):
        service.send_signal(signal.SIGINT)  # SIGTERM would drain an agent first
        try:
            service.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            service.kill()
            service.wait()
    services.clear()
    _close(links)


def _wake(links: list[ResizeLink]) -> None:
    for link in tuple(links):
        link.wake()


def _close(links: list[ResizeLink]) -> None:
    while links:
        links.pop().close()
