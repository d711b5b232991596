"""ClientSession: what earlier clients have left in a named session."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

from scaler_client.calls.encoding import CallWriter
from scaler_client.core.events import FuturesAdopted, TaskLabelled
from scaler_client.core.records import CallGroup
from scaler_client.futures.futures import ScalerFuture
from scaler_client.futures.waiters import FutureOwner
from scaler_client.parameters import check_name
from scaler_client.runtime.io_thread import IoThread
from scaler_io.reentrant_lock import ReentrantLock
from scaler_protocol.ids import session_of
from scaler_protocol.limits import LABEL
from scaler_protocol.messages import Group
from scaler_protocol.ranges import shown
from scaler_protocol.sessions import give_name

NAMES_SHOWN: Final = 10
"""Most names that an error text lists."""


class ClientSession:
    """A session with a name, which outlives its client: its tasks go on, and a later client gets their futures.

    Made by `Client(..., session="name")`. Thread-safe. Results are kept for `--result-retention-seconds` of the
    scheduler after they came or were last read, whether a client has had them or not.

    Attributes:
        name: the name of the session.

    >>> with Client(address, session="api-kilo") as first:
    ...     first.session.publish("kilo", first.submit(pow, 2, 10))
    >>> with Client(address, session="api-kilo") as second:
    ...     second.session.future("kilo").result()
    1024
    """

    __slots__ = ("_adopted", "_ended", "_group", "_io", "_lock", "_owner", "_published", "name")

    name: str

    def __init__(self, name: str, io: IoThread, owner: FutureOwner, writer: CallWriter) -> None:
        self.name = name
        self._io, self._owner = io, owner
        self._group = CallGroup(Group(b""), (), writer.load, lambda value: bytes(writer.dump_object(value)))
        self._lock = ReentrantLock()  # a signal handler or a finalizer may ask or publish in the middle of a request
        """Held during requests, so that none is on its way when the session ends.

        Taken inside of `io.waiting` only: it may be held for ever in a forked process, and the io thread must not wait.
        """
        self._ended = False
        self._adopted: dict[int, ScalerFuture[Any]] = {}
        self._published: dict[str, ScalerFuture[Any]] = {}

    def futures(self) -> list[ScalerFuture[Any]]:
        """The futures of all calls that earlier clients have left, ended or not, in the order of submission.

        Calls of this client, and intermediate nodes of graphs, are not among them. The same futures each time.

        Raises:
            SchedulerLostError: the scheduler is unreachable for the client's `timeout_seconds`.
            ClientQuitError: the client is disconnected.

        >>> with Client(address, session="api-futures") as first:
        ...     futures = [first.submit(pow, 2, power) for power in range(3)]
        >>> with Client(address, session="api-futures") as second:
        ...     [future.result() for future in second.session.futures()]
        [1, 2, 4]
        """
        with self._io.waiting, self._lock:
            tasks = {task: claimed for task, _, claimed in self._rows()}
            self._adopt([task for task, claimed in tasks.items() if not claimed and task not in self._adopted])
            return [self._adopted[task] for task in tasks if task in self._adopted]

    def future(self, name: str) -> ScalerFuture[Any]:
        """The future that was published under this name, by this client or an earlier one.

        Args:
            name: as given to `publish`.

        Raises:
            KeyError: there is none; the message lists those of earlier clients, or the nearest of many.
            ValueError: the name is invalid.
            SchedulerLostError, ClientQuitError: as in `futures`.

        >>> with Client(address, session="api-future") as client:
        ...     client.session.future("kilo")
        Traceback (most recent call last):
            ...
        KeyError: "no future of session 'api-future' is published as 'kilo'; there are: none"
        """
        check_name("name", name, LABEL)
        with self._io.waiting, self._lock:
            if name in self._published:
                return self._published[name]
            rows = [(task, label) for task, label, claimed in self._rows() if not claimed or task in self._adopted]
            names = {label: task for task, label in rows if label}
            if name not in names:
                known = _nearest(name, names)
                text = f"no future of session {self.name!r} is published as {shown(name)}; there are: {known}"
                raise KeyError(text)
            if names[name] not in self._adopted:
                self._adopt([names[name]])
            return self._adopted[names[name]]

    def publish(self, name: str, future: ScalerFuture[Any]) -> None:
        """Name a future, so that later clients of the session find it with `future`; does not wait for the scheduler.

        A future may have several names. Of the names of a session the 10,000 newest are kept.

        Args:
            name: another future of this name loses it.
            future: of a call of this session.

        Raises:
            ValueError: the name or the future is invalid.
            ClientQuitError: the client is disconnected.

        >>> with Client(address, session="api-publish") as client:
        ...     client.session.publish("kilo", client.submit(pow, 2, 10))
        ...     client.session.future("kilo").result()
        1024
        """
        check_name("name", name, LABEL)
        if not isinstance(future, ScalerFuture) or session_of(future.task_id) != self._io.ids.session:
            raise ValueError(f"{shown(future)} is no future of a call of session {self.name!r}")
        with self._io.waiting, self._lock:
            give_name(self._published, name, future)
            self._io.mailbox.put(TaskLabelled(future.task_id, name))
            self._io.mailbox.wake()

    def end(self) -> None:
        """Cancel all calls of the session, drop all that is kept of it, and disconnect the client. May be called again.

        Raises:
            SchedulerLostError, ClientQuitError: as in `futures`.

        >>> with Client(address, session="api-end") as client:
        ...     client.session.end()
        """
        with self._io.waiting, self._lock:
            if not self._ended:
                self._io.session_queries.end_session()
                self._ended = True
                self._io.stop()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ClientSession can not be pickled: it stays with its client; pass the name of the session, or futures"
        )

    def _rows(self) -> Iterator[tuple[int, str, bool]]:
        """Each task with its name, and whether this process has a future of it."""
        for piece in self._io.session_queries.tasks():
            yield from zip(piece.tasks, piece.labels, piece.claimed, strict=True)

    def _adopt(self, tasks: list[int]) -> None:
        made = [ScalerFuture[Any](self._owner, task, self._group, b"") for task in tasks]
        futures = [future for future in made if self._adopted.setdefault(future.task_id, future) is future]
        if futures:
            self._io.mailbox.put(FuturesAdopted(futures))
            self._io.mailbox.wake()


def _nearest(name: str, names: Iterable[str]) -> str:
    """The names in order, for an error text; of many those that are most like `name`, if any are."""
    every = sorted(names)
    if len(every) <= NAMES_SHOWN:
        return ", ".join(map(shown, every)) or "none"
    listed = difflib.get_close_matches(name, every, NAMES_SHOWN) or every[:NAMES_SHOWN]
    return f"{', '.join(map(shown, listed))} and {len(every) - len(listed):,} more"
