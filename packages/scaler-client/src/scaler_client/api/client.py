"""The client: submits calls and returns futures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from scaler_client.api.client_calls import ClientCalls
from scaler_client.api.pickled_clients import unpickled
from scaler_client.api.submitter import CallSubmitter
from scaler_client.calls.object_reference import ObjectReference
from scaler_client.client_name import client_name
from scaler_client.interrupts import interrupts_blocked
from scaler_client.notebook import Card, ShownInNotebooks, dashboard_of, dashboard_row
from scaler_client.parameters import (
    check,
    check_client,
    check_initializer,
    check_session,
    flag,
    key_settings,
)
from scaler_client.payloads.serializers import DefaultSerializer
from scaler_client.task_context import TaskRuntime, runtime
from scaler_protocol.ids import new_identity
from scaler_protocol.limits import NAME
from scaler_protocol.serializer import Serializer

if TYPE_CHECKING:
    from scaler_client.api.client_session import ClientSession
    from scaler_client.api.connected_workers import ConnectedWorkers
    from scaler_client.api.executor import ClientExecutor
    from scaler_client.runtime.io_thread import IoThread

T = TypeVar("T")


class Client(ClientCalls, ShownInNotebooks):
    """A connection to a cluster, which submits calls and returns futures. Thread-safe; also a context manager.

    Args:
        address: the scheduler, `tcp://host:port` or `ipc://path`. Optional inside a task, where the client belongs to
            the cluster that runs the task.
        profiling: without effect, for older programs; profiles are always taken.
        timeout_seconds: how long the scheduler may be unreachable, while connecting and later, before
            SchedulerLostError is raised, or ends the futures.
        heartbeat_interval_seconds: without effect, for older programs; the scheduler chooses the interval.
        serializer: a Serializer, or its class, for functions, arguments and results; cloudpickle by default.
        stream_output: whether to print here what tasks print; `"prefixed"` puts task, worker and host before each line.
        object_storage_address: the object storage server, if not the one that the scheduler names.
        security_config: None only, for older programs.
        keys: the directory of the cluster's keys; by default `SCALER_KEYS`, or, at an address that only this host can
            reach, this user's own keys. The connection is encrypted, and both sides prove a key. Inside tasks the
            workers' keys are taken.
        insecure: use no keys, as the services of a cluster with `--insecure` do; by default as `SCALER_INSECURE` says.
        block: whether `submit`, `map`, `get` and their like wait while this client has as many unfinished tasks as the
            scheduler allows (`--max-number-of-tasks-waiting`); otherwise they raise SubmitLimitError then.
        session: the name of a session that outlives this client: its tasks go on without it, and a later client with
            the same name gets their futures, see the property `session`. One client at a time has it.
        session_secret: what proves the session; by default the secret key in `keys`, and without keys nothing.
        initializer: a callable that runs once in each worker, before the first call of this client there, and once more
            after an `upload`. If it raises, the call raises InitializerError with that exception as its cause, and the
            next call in that worker tries again. Without effect inside a task, whose clients find what the task finds.
        name: what pages, logs and events call this client; by default user, host, script and process, such as
            `ann@vm train.py 4711`.
        tracing: whether calls have spans of OpenTelemetry (`pip install scaler[otel]`): submit, wait, run, fetch; code
            of tasks runs in the context in which they were submitted. Not with a serializer of its own.

    Raises:
        AddressError, ValueError, TypeError: a parameter is invalid; the message names it.
        ImportError: `tracing` without OpenTelemetry.
        ValueError: the keys cannot be read, or others can read them.
        HandshakeRefusedError: the scheduler does not accept the key, or has another one than the key was made for; the
            session has another secret.
        SessionInUseError: another client has the session.
        SchedulerLostError: the scheduler does not answer within `timeout_seconds`.

    >>> with Client(address=address) as client:
    ...     client.submit(pow, 2, 10).result()
    1024
    """

    def __init__(
        self,
        address: str | None = None,
        profiling: bool = False,
        timeout_seconds: float = 60,
        heartbeat_interval_seconds: float = 2,
        serializer: Serializer | type[Serializer] = DefaultSerializer,
        stream_output: bool | str = False,
        object_storage_address: str | None = None,
        security_config: None = None,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        block: bool = True,
        session: str | None = None,
        session_secret: str | bytes | None = None,
        name: str | None = None,
        initializer: Callable[[], object] | None = None,
        tracing: bool = False,
    ) -> None:
        security = key_settings(keys, insecure, security_config)
        check_client(address, timeout_seconds, serializer, stream_output, object_storage_address)
        check_session(session, session_secret)
        with interrupts_blocked():  # ZeroMQ and the like take most of the start-up time: services start meanwhile
            from scaler_client.runtime import connection

        self._settings: dict[str, Any] = {
            "address": address,
            "profiling": profiling,
            "timeout_seconds": timeout_seconds,
            "heartbeat_interval_seconds": heartbeat_interval_seconds,
            "serializer": serializer,
            "stream_output": stream_output,
            "object_storage_address": object_storage_address,
            "keys": None if keys is None else security[0],
            "insecure": insecure,
            "block": flag("block", block),
            "name": name,
            "initializer": check_initializer(initializer),
            "tracing": flag("tracing", tracing),
        }
        self._timeout_seconds, self._identity, self._name = timeout_seconds, new_identity(), client_name(name)
        named = connection.SessionName.of(session, session_secret) if session is not None else None
        self._io, self._inside = connection.connect(
            runtime(), address, self._identity, self._name, timeout_seconds, object_storage_address, security, named
        )
        calls = _submitter(
            self._io, self._inside, serializer, stream_output, block, timeout_seconds, initializer, tracing
        )
        super().__init__(calls, nested=self._inside is not None)
        self._session = calls.session(session) if session is not None else None

    # --- objects ----------------------------------------------------------------------------------------------------

    def send_object(self, obj: T, name: str | bytes | None = None) -> ObjectReference[T]:
        """Send an object once; returns a reference to use as an argument of many calls.

        The object is serialized now. It is freed with its last reference, or by `release`, `clear` or `disconnect`.

        Args:
            obj: any object that can be serialized.
            name: what monitors may call it.

        Raises:
            StorageLostError: the object is above 16 KiB, and the object storage server is unreachable.
            StorageFullError: the object storage server has no room for it.
            ValueError, TypeError: the name is invalid, or the object cannot be serialized, as in `submit`.
            ClientQuitError: the client is disconnected.

        >>> table = client.send_object({"one": 1})
        >>> client.submit(len, table).result()
        1
        """
        self._check()
        if name is not None and not isinstance(name, bytes):
            check("name", name, NAME)
        return self._calls.send_object(obj, name)

    def upload(self, module: str | os.PathLike[str] | ModuleType) -> None:
        """Have later calls find a module, or a package, as it is now; does not wait for workers.

        Workers import it from memory, in the version that was uploaded last before a call was submitted; earlier calls
        keep what they had, and versions do not disturb each other. It goes before a module of the same name that the
        workers have. Tasks inside of tasks find it, too. Files of a package that are no modules are read with
        `pkgutil.get_data`.

        Args:
            module: a `.py` file, the folder of a package, or a module of either kind, whose files are read again.

        Raises:
            TypeError: it is neither a module nor a path.
            ValueError: it is no module or package of Python files, the client has a serializer of its own, or this is
                inside a task.
            OSError: the files cannot be read.
            StorageLostError: it is above 16 KiB, and the object storage server is unreachable.
            ClientQuitError: the client is disconnected.

        >>> import importlib
        >>> from pathlib import Path
        >>> path = Path("api_upload.py")
        >>> _ = path.write_text("def answer(): return 42")
        >>> client.upload(path)
        >>> path.unlink()
        >>> client.submit(lambda: importlib.import_module("api_upload").answer()).result()
        42
        """
        from scaler_client.calls.bundles import read_bundle

        self._outside("upload a module")
        self._calls.upload(read_bundle(module))

    def clear(self) -> None:
        """Cancel all unfinished calls and release all sent objects; the client stays connected.

        Raises:
            ClientQuitError: the client is disconnected.

        >>> client.clear()
        """
        self._check()
        self._calls.clear()

    @property
    def session(self) -> ClientSession:
        """The named session: its futures, their names, its end.

        Raises:
            ValueError: the client has no `session`.
            ClientQuitError: the client is disconnected.

        >>> with Client(address, session="api-session") as first:
        ...     future = first.submit(pow, 2, 10)
        >>> with Client(address, session="api-session") as second:
        ...     [future.result() for future in second.session.futures()]
        [1024]
        """
        self._check()
        if self._session is None and self._inside is not None:
            raise ValueError("clients in tasks have no named session: take its futures where the task is submitted")
        if self._session is None:
            raise ValueError("this client's session has no name and ends with it: make Client(..., session='name')")
        return self._session

    # --- workers ----------------------------------------------------------------------------------------------------

    def workers(self) -> ConnectedWorkers:
        """The workers that are connected to the scheduler: `count`, and `hosts` with what each of them offers.

        Raises:
            SchedulerLostError: the scheduler is unreachable for the client's `timeout_seconds`.
            ValueError: this is inside a task.
            ClientQuitError: the client is disconnected.

        >>> workers = client.workers()
        >>> workers.count, workers.hosts[0].workers
        (2, 2)
        """
        from scaler_client.api.connected_workers import connected_workers

        return connected_workers(self._outside())

    def wait_for_workers(self, n: int, timeout: float | None = None) -> ConnectedWorkers:
        """Wait until at least `n` workers are connected to the scheduler; returns all of them.

        Args:
            n: number of workers.
            timeout: seconds; None for no limit.

        Raises:
            TimeoutError: there are fewer after `timeout` seconds; the message says how many.
            SchedulerLostError: the scheduler is unreachable for the client's `timeout_seconds`.
            ValueError: a parameter is invalid, or this is inside a task.
            ClientQuitError: the client is disconnected.

        >>> client.wait_for_workers(2, timeout=30).count
        2
        """
        from scaler_client.api.connected_workers import wait_for_workers

        return wait_for_workers(self._outside(), n, timeout)

    def run(
        self,
        fn: Callable[..., T],
        /,
        *args: Any,
        timeout: float | None = None,
        workers: Iterable[str] | None = None,
    ) -> dict[str, T | BaseException]:
        """Run a call once on every worker; waits, and returns the results by worker, whose id is `host:pid`.

        An exception takes the place of its worker's result, so that it hides no other one: TimeoutError for a call that
        has not ended in time, and is cancelled; WorkerDiedError for a worker that has died meanwhile. A busy worker
        runs the call when its present task has ended, before all others that wait. The call is not repeated.

        Args:
            fn: any callable.
            args: its arguments.
            timeout: seconds for all workers together; None for no limit.
            workers: ids of the workers that are to run it, as an earlier call has returned them; None for all.

        Raises:
            TimeoutError: the scheduler has not named the workers within `timeout`: it does not answer, or workers of a
                host are still starting.
            SchedulerLostError: the scheduler is unreachable for the client's `timeout_seconds`.
            ValueError, TypeError: a parameter or the call is invalid, a worker unknown, or this is inside a task.
            SubmitLimitError, ClientQuitError: as in `submit`.

        >>> set(client.run(pow, 2, 10).values())
        {1024}
        """
        from scaler_client.api.worker_calls import WorkerCalls

        io = self._outside()
        return WorkerCalls(io, self._calls, timeout).run(self._calls.find(fn), args, workers)

    def restart_workers(self, *, timeout: float | None = None, workers: Iterable[str] | None = None) -> list[str]:
        """Replace workers by new processes, each when its present task has ended; waits, and returns the replaced ones.

        This frees what tasks have leaked, and forgets imported modules, but for those of `--preload`. Tasks of any
        client that wait for these workers are run by others.

        Args:
            timeout: seconds for all workers together; None for no limit.
            workers: ids of workers, as in `run`; None for all.

        Raises:
            TimeoutError: workers have not ended in time; they are replaced later if they have been reached.
            SchedulerLostError, ValueError, TypeError, SubmitLimitError, ClientQuitError: as in `run`.

        >>> before = client.run(abs, -1)
        >>> set(client.restart_workers(timeout=60)) == set(before)
        True
        """
        from scaler_client.api.worker_calls import WorkerCalls

        reason = f"client {self._name} restarts the workers"
        return WorkerCalls(self._outside(), self._calls, timeout).restart(reason, workers)

    def executor(self) -> ClientExecutor:
        """This client as a `concurrent.futures.Executor`, whose `shutdown` does not disconnect the client.

        >>> with client.executor() as executor:
        ...     list(executor.map(abs, [-1, -2]))
        [1, 2]
        """
        from scaler_client.api.executor import ClientExecutor

        return ClientExecutor(self.submit_verbose, lambda: self.workers().count)

    # --- the end ----------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> bytes:
        """The identity of this client: `Client|` and 32 hexadecimal digits, as bytes.

        >>> client.identity.startswith(b"Client|")
        True
        """
        return f"Client|{self._identity.hex()}".encode()

    @property
    def address(self) -> str | None:
        """The address of the scheduler; None inside a task.

        >>> client.address == address
        True
        """
        address: str | None = self._settings["address"]
        return address

    @property
    def name(self) -> str:
        """What pages, logs and events call this client.

        >>> with Client(address=address, name="nightly") as other:
        ...     other.name
        'nightly'
        """
        return self._name

    def disconnect(self) -> None:
        """Cancel unfinished calls and disconnect. Inside a task only this client is closed. May be called again.

        A client with a `session` leaves it: futures end as cancelled here only, and the calls go on.

        >>> client.disconnect()
        """
        if self._session is not None:
            self._io.leave(self._timeout_seconds)  # first, since calls that go on need what they refer to
        self._calls.close()
        if self._inside is None:
            self._io.stop()

    def shutdown(self) -> None:
        """End the scheduler with all its workers, and disconnect.

        Raises:
            ValueError: the scheduler is protected, which is the default, or this is inside a task; the client stays
                connected.
            ClientQuitError: the client is disconnected.

        >>> client.shutdown()
        Traceback (most recent call last):
            ...
        ValueError: Scheduler is in protected mode. Can't shutdown
        """
        self._check()
        if self._inside is not None:
            raise ValueError("a task cannot shut down the scheduler that runs it")
        answer = self._io.ask_shutdown(self._timeout_seconds)
        if answer is not None and not answer.accepted:
            raise ValueError(answer.reason or "Scheduler is in protected mode. Can't shutdown")
        self.disconnect()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.disconnect()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        import asyncio  # as late as possible: `import scaler` is to be fast

        await asyncio.to_thread(self.disconnect)

    def __repr__(self) -> str:
        return f"<Client {self._name!r} of {self.address or 'its task'}, {self._state}>"

    @property
    def _state(self) -> str:
        return "disconnected" if self._calls.is_closed else "connected"

    @property
    def dashboard_link(self) -> str | None:
        """Where the pages are: of a local cluster with `dashboard=True`, or what SCALER_DASHBOARD says; otherwise None.

        Raises:
            ValueError: SCALER_DASHBOARD says what is no address of pages.

        >>> client.dashboard_link is None
        True
        """
        return dashboard_of(self.address)

    def _card(self) -> Card:
        rows = {
            "scheduler": self.address or "inside a task",
            "name": self._name,
            "unfinished tasks": f"{self._io.unfinished:,}" if self._inside is None else "",
            "pages": dashboard_row(self.address),
        }
        return Card("Scaler client", self._state, rows, is_final=self._calls.is_closed)

    def __reduce__(self) -> tuple[Any, ...]:
        scheduler = self._io.scheduler if self._inside is None else self._inside.scheduler
        return unpickled, (type(self), self._settings, scheduler)

    # --- within -----------------------------------------------------------------------------------------------------

    def _outside(self, what: str = "ask for the workers") -> IoThread:
        """The io thread; raises ValueError inside a task, which shares the connection of its worker's host."""
        self._check()
        if self._inside is not None:
            raise ValueError(f"a task cannot {what}: do it where the task is submitted")
        return self._io

    def _check(self) -> None:
        self._calls.check()


def _submitter(
    io: IoThread,
    inside: TaskRuntime | None,
    serializer: Serializer | type[Serializer],
    stream_output: bool | str,
    waits: bool,
    patience: float,
    initializer: Callable[[], object] | None,
    tracing: bool,
) -> CallSubmitter:
    """The submitter of a new client, whose connection is closed if there can be none."""
    try:
        return CallSubmitter(
            io,
            inside,
            serializer,
            stream_output,
            waits=waits,
            patience=float(patience),
            initializer=initializer,
            tracing=tracing,
        )
    except BaseException:
        if inside is None:
            io.stop()
        raise
