"""The shell around ClientCore: one thread that talks to the scheduler, one for callbacks."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from scaler_client.core.core import ClientCore
from scaler_client.core.effects import (
    AnswerShutdown,
    Cleared,
    ClientEffect,
    Connected,
    DeleteUnknownObjects,
    DumpInputs,
    KeepObjects,
    ListUnknownObjects,
    Print,
    RestoreObjects,
    SessionAnswered,
    Transmit,
    WorkersListed,
)
from scaler_client.core.events import (
    CallsSubmitted,
    ClearRequested,
    ClientClosed,
    ClientRequest,
    InputDumped,
    MessageRejected,
    ObjectsRestored,
    RestoreFailed,
    ShutdownRequested,
    TasksCancelled,
    UnknownObjectsListed,
)
from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.lineage import Lineage, adopted
from scaler_client.core.records import CallBlock, CallGroup, Deliver, Dependency, Discard
from scaler_client.futures.deliveries import deliver, fail
from scaler_client.futures.futures import ScalerFuture
from scaler_client.futures.waiters import FutureOwner, due_callbacks
from scaler_client.objects.handles import Remade, ResultOrigin, StoredObject, StoredPayload
from scaler_client.objects.store import ClientStorage
from scaler_client.runtime.blocking import BlockingSection, MailboxEntry
from scaler_client.runtime.callbacks import Callbacks
from scaler_client.runtime.mailbox import Mailbox
from scaler_client.runtime.remaking import Remaker
from scaler_client.runtime.session_queries import SessionQueries
from scaler_client.runtime.task_gate import TaskGate
from scaler_client.runtime.task_ids import TaskIds
from scaler_client.runtime.worker_lists import WorkerLists
from scaler_client.task_context import TaskRuntime, Transport
from scaler_io.thread_event import ThreadEvent, never_wait_here
from scaler_protocol.buffers import Payload
from scaler_protocol.errors import ClientForkedError, ClientQuitError, ScalerError
from scaler_protocol.handshake import INLINE_LIMIT, Goodbye
from scaler_protocol.messages import Message
from scaler_protocol.objects import SHARED_BYTES

PAUSE_SECONDS: Final = 0.001
"""How long the thread pauses after it took submissions, so that more of them go into one batch."""
IDLE_SECONDS: Final = 1.0
LEAVE_SECONDS: Final = 10.0
"""How long a client of a named session waits at its end until the scheduler has all calls."""
GOODBYE_SECONDS: Final = 1.0
"""How long closing may take."""

_log = logging.getLogger("scaler")


class IoThread:
    """Runs one core over one transport, from `start` to `stop`. Public methods may be called from any thread."""

    def __init__(
        self,
        address: str,
        ids: TaskIds,
        dial: Callable[[], Transport],
        storage: ClientStorage,
        runtime: TaskRuntime | None = None,
        *,
        named: bool = False,
    ) -> None:
        """`named`: the session outlives this client."""
        self.address = address
        self.storage_address, self.storage_token = "", b""
        """The address of object storage as the scheduler reports it."""
        self.scheduler = 0
        """The incarnation of the scheduler that sent the last Welcome."""
        self.storage = storage
        self._inside = runtime is not None
        self._named = named
        self.mailbox: Mailbox[MailboxEntry] = Mailbox()
        self.waiting = BlockingSection(self.mailbox, runtime)
        self.gate = TaskGate(self.mailbox, self.waiting)
        self.worker_lists = WorkerLists(self.mailbox, self.waiting)
        self.session_queries = SessionQueries(self.mailbox, self.waiting)
        self.ids = ids
        self.next_task, self.next_tasks = ids.next_task, ids.next_tasks
        self._dial = dial
        self._core = ClientCore(address, named=named, has_credit=runtime is None and not named)
        self._callbacks = Callbacks()
        self._remaker = Remaker(self._remake)
        self._unstarted: deque[tuple[Callable[[], object], str]] = deque()
        """Work that waits until a thread can be started, each with the name of the thread."""
        self._connected = ThreadEvent()
        self._connect_error: ScalerError | None = None
        self._shutdown_answered = ThreadEvent()
        self._shutdown_answer: AnswerShutdown | None = None
        self._clear_numbers = itertools.count()
        self._clearing: dict[int, ThreadEvent] = {}
        """By the number of its request, the event that is set when a `clear` is done."""
        self._perform = self._performers()
        self._taken: list[MailboxEntry] = []
        """The mailbox entries that the core is handling."""
        self._taken_at = 0.0
        self._thread = threading.Thread(target=self._run, name="scaler-io", daemon=True)

    def _performers(self) -> dict[type[Any], Callable[[Any], object]]:
        return {
            Cleared: self._cleared,
            Deliver: self._deliver,
            Discard: self._discard,
            Connected: self._note_connected,
            Print: lambda output: self._callbacks.add(lambda: _print(output)),
            AnswerShutdown: self._note_shutdown,
            WorkersListed: self.worker_lists.answer,
            SessionAnswered: self.session_queries.answer,
            DumpInputs: self._dump_inputs,
            RestoreObjects: lambda lost: self.restore_objects(lost.tasks, lost.needs),
            ListUnknownObjects: lambda effect: self._callbacks.add(self._list_unknown_objects),
            DeleteUnknownObjects: lambda effect: self._callbacks.add(self.storage.delete_unknown),
            KeepObjects: lambda effect: self.storage.keep_known(),
        }

    def start(self) -> None:
        """Start connecting; raises RuntimeError at the limit of threads."""
        _living.add(self)
        try:
            self._callbacks.start()
            self._thread.start()
        except BaseException:
            self.mailbox.close(ClientQuitError())
            self._leave(None, None)
            raise

    def wait_connected(self, seconds: float) -> None:
        """Block until the scheduler sends Welcome; raises HandshakeRefusedError or SchedulerLostError."""
        self._connected.wait(seconds)
        if self._connect_error is not None:
            raise self._connect_error

    # --- tasks ------------------------------------------------------------------------------------------------------

    def cancel(self, tasks: Sequence[int]) -> None:
        """Cancel these tasks. Never blocks."""
        self.tell(TasksCancelled(tasks))

    def tell(self, request: ClientRequest) -> None:
        """Send a request to the core; does nothing if the client is closed."""
        with contextlib.suppress(ClientQuitError, ClientForkedError):
            self.mailbox.put(request)

    def clear(self) -> None:
        """Cancel all tasks; returns when all futures have ended."""
        number, cleared = next(self._clear_numbers), ThreadEvent()
        self._clearing[number] = cleared
        self.tell(ClearRequested(number))
        self.mailbox.wake()
        while not cleared.wait(IDLE_SECONDS) and self._thread.is_alive():
            pass

    def leave(self, seconds: float) -> None:
        """Close a client whose session goes on; waits at most `seconds` until the scheduler has all calls."""
        if not self.mailbox.closed and threading.current_thread() is not self._thread:
            try:
                has_all = self.session_queries.confirm(seconds)
            except ClientQuitError:  # another thread has ended the session, or has left it
                has_all = True
            except ScalerError:
                has_all = False
            if not has_all:
                _log.warning("the scheduler at %s may lack the last calls of a session that was left", self.address)
        self.stop()

    def call_soon(self, work: Callable[[], object]) -> None:
        """Run this in the callback thread."""
        self._callbacks.add(work)

    def ask_shutdown(self, seconds: float) -> AnswerShutdown | None:
        """The scheduler's answer to Shutdown; None if there is none within `seconds`."""
        answered = self._shutdown_answered
        self.tell(ShutdownRequested())
        self.mailbox.wake()
        return self._shutdown_answer if answered.wait(seconds) else None

    # --- the end ----------------------------------------------------------------------------------------------------

    def stop(self, seconds: float = GOODBYE_SECONDS) -> None:
        """Cancel all tasks and close; waits at most `seconds` for the thread to send Goodbye."""
        self.mailbox.close(ClientQuitError())
        self.mailbox.wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def poison(self) -> None:
        """Refuse all use in a forked process, whose threads and sockets belong to the parent."""
        self.mailbox.close(ClientForkedError())
        self.gate.limit = 0  # its lock may be held by a thread of the parent
        self.storage.refuse(ClientForkedError())
        self.waiting.forked = True

    def _deliver(self, outcomes: Deliver) -> None:
        deliver(adopted(outcomes, self.storage.adopt) if outcomes.stored else outcomes)
        if outcomes.has_losses():
            self.storage.losses += 1

    def remake(self, origin: ResultOrigin) -> Remade | None:
        """The task that makes a lost result again; None if that is impossible."""
        return self._remaker.make(origin) if isinstance(origin, Lineage) else None

    def _remake(self, group: CallGroup, call: bytes, needs: Sequence[Dependency]) -> ScalerFuture[Any]:
        future: ScalerFuture[Any] = ScalerFuture(self, self.next_task(), group, call, needs)
        self.mailbox.put(future)
        self.mailbox.wake()
        return future

    def submit_again(self, group: CallGroup, call: bytes, needs: Sequence[Dependency]) -> ScalerFuture[Any]:
        """Submit a call inside of a task as a new task."""
        return self.submit_for(self, group, call, needs, block=True)

    def submit_for(
        self, owner: FutureOwner, group: CallGroup, call: bytes, needs: Sequence[Dependency], *, block: bool
    ) -> ScalerFuture[Any]:
        """Submit a call as a new task, whose future has this owner; `block` is whether to wait for room."""
        future: ScalerFuture[Any] = ScalerFuture(owner, self.next_task(), group, call, needs)
        if self.gate.limit:
            self.gate.put(future, 1, block=block)
        else:
            self.mailbox.put(future)
        return future

    def _discard(self, unwanted: Discard) -> None:
        for object_id in unwanted.objects:
            self.storage.discard(object_id)

    def restore_objects(self, tasks: Sequence[int] = (), needs: Sequence[Dependency] = ()) -> None:
        """Store lost objects again, and make again lost results that were not read or are among `needs`.

        Then have these tasks run again. Does not block.
        """

        def run() -> None:
            try:
                server = self.storage.restore()
                if tasks:
                    self.storage.remake(_results_among(needs))
            except ClientQuitError:
                return
            except Exception as error:
                _log.warning("cannot restore lost objects, so the tasks that need them fail: %r", error)
                self.tell(RestoreFailed(tasks))
            else:
                self.tell(ObjectsRestored(tasks, server))
            self.mailbox.wake()

        self._start_thread(run, "scaler-restore")

    def _dump_inputs(self, needed: DumpInputs) -> None:
        """Serialize in a thread of its own: code of users may block, here as well as in the callback thread."""
        self._start_thread(lambda: self._dump_each(needed), "scaler-dump")

    def _dump_each(self, needed: DumpInputs) -> None:
        for task, dump in needed.dumps.items():
            self.tell(InputDumped(task, dump()))

    def _start_thread(self, work: Callable[[], object], name: str) -> None:
        """Run this in a thread of its own, as soon as one can be started."""
        try:
            threading.Thread(target=work, name=name, daemon=True).start()
        except RuntimeError as error:
            if not self._unstarted:
                _log.warning("a client cannot start threads, will try again: %s; see ulimit -u and pids.max", error)
            self._unstarted.append((work, name))

    def _start_threads(self) -> None:
        """Start the threads that could not be started."""
        while self._unstarted:
            work, name = self._unstarted[0]
            try:
                threading.Thread(target=work, name=name, daemon=True).start()
            except RuntimeError:
                return
            self._unstarted.popleft()

    def _list_unknown_objects(self) -> None:
        if self.storage.list_unknown():
            self.tell(UnknownObjectsListed())
            self.mailbox.wake()

    def _cleared(self, effect: Cleared) -> None:
        if cleared := self._clearing.pop(effect.number, None):
            cleared.set()

    def _note_connected(self, event: Connected) -> None:
        self.storage_address = event.storage or self.storage_address
        self.storage_token = event.token or self.storage_token
        self.scheduler = event.scheduler or self.scheduler
        if not self._connected.is_set():
            if event.unused_ids is not None:
                self.ids.resume(event.session, event.unused_ids)
                self.storage.session = event.session
            self._connect_error = event.error
            self._connected.set()
        elif event.error is not None:
            _log.error("%s", event.error)

    def _note_shutdown(self, answer: AnswerShutdown) -> None:
        self._shutdown_answer = answer
        answered, self._shutdown_answered = self._shutdown_answered, ThreadEvent()  # for the next request
        answered.set()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure: ClientQuitError | None = None
        transport: Transport | None = None
        never_wait_here()
        try:
            transport = self._dial()
            while not self.mailbox.closed:
                more, busy = self._turn(transport)
                if not more:
                    self._sleep(transport, busy)
        except BaseException as error:
            _log.exception("the io thread of a client failed")
            failure = ClientQuitError(f"the client's io thread failed: {error!r}; make another client")
            failure.__cause__ = error.with_traceback(None)  # the log has the traceback, whose frames hold results
            self.mailbox.close(failure)
        finally:
            self._leave(transport, failure)

    def carries(self, size: int, before: int = 0) -> bool:
        """Whether a call of so many bytes goes through the scheduler now; `before`: the calls that come first.

        Long ones do while unfinished calls take less than half of the credit. A session that outlives its client leaves
        them in object storage.
        """
        if size <= INLINE_LIMIT:
            return True
        if size > SHARED_BYTES or self._inside or self._named:
            return False
        return self._core.has_room(size, before + len(self.mailbox))

    def place(self, call: Payload, before: int = 0) -> bytes:
        """The bytes of a call that goes through the scheduler, or its handle; arguments may be modified after this."""
        return bytes(call) if self.carries(len(call), before) else self.storage.store(call, soon=True)

    @property
    def unfinished(self) -> int:
        """How many tasks that the io thread has taken have no outcome yet."""
        return self._core.unfinished

    def _turn(self, transport: Transport) -> tuple[bool, bool]:
        """Read, decide, write, deliver; returns whether there is more to read, and whether submissions are expected.

        Delivered effects are local to this frame: a reference kept while the thread sleeps would keep results alive.
        """
        core, now = self._core, time.monotonic()
        for event in transport.turn(now):
            core.handle(event, now)
        entries = self.gate.take()
        if entries:
            self._accept(entries, now)
        effects = core.settle(now)
        if core.task_credit or self.gate.limit:
            self.gate.update(core.task_credit, core.unfinished)
        try:
            for effect in effects:  # grows when a message is rejected
                if type(effect) is Transmit:
                    try:
                        transport.send(effect.message)
                    except Exception as error:
                        self._reject(effect.message, error, now)
                        effects += core.settle(now)
            for event in transport.flush(now):
                core.handle(event, now)
            more = transport.readable()
        finally:
            # Last, because threads that wait for an outcome need the GIL, which this thread has until it sleeps.
            self._perform_each(effects)
        if self._unstarted:
            self._start_threads()
        return more, self._expects_more(len(entries), now)

    def _reject(self, message: Message, error: Exception, now: float) -> None:
        _log.error("a client cannot send a %s message: %s", type(message).__name__, error, exc_info=error)
        if not isinstance(error, ScalerError):
            cause, error = error, ScalerError(f"the message with this call cannot be sent: {error!r}")
            error.__cause__ = cause.with_traceback(None)
        self._core.handle(MessageRejected(message, error), now)

    def _perform_each(self, effects: Iterable[ClientEffect]) -> None:
        """Perform all effects but Transmit; one that fails does not affect the others, and its waiters are notified."""
        fatal: Exception | None = None
        for effect in effects:
            if type(effect) is not Transmit:
                try:
                    self._perform[type(effect)](effect)
                except Exception as error:
                    _log.exception("a client could not perform the effect %s", type(effect).__name__)
                    try:
                        self._recover(effect, error)
                    except Exception as another:
                        fatal = another
        if fatal is not None:
            raise fatal

    def _recover(self, effect: ClientEffect, error: Exception) -> None:
        if isinstance(effect, Deliver):
            fail(effect, error)
        elif isinstance(effect, RestoreObjects):
            self.tell(RestoreFailed(effect.tasks))
        elif isinstance(effect, DumpInputs):  # no thread can be started
            self._callbacks.add(lambda: self._dump_each(effect))
        elif isinstance(effect, Cleared | AnswerShutdown | WorkersListed | SessionAnswered | Connected):
            self._perform[type(effect)](effect)

    def _expects_more(self, taken: int, now: float) -> bool:
        """Whether more submissions are likely: a single one after a pause is probably waited for by its caller."""
        before = self._taken_at
        if taken:
            self._taken_at = now
        return taken > 1 or (taken == 1 and now < before + PAUSE_SECONDS)

    def _accept(self, entries: list[MailboxEntry], now: float) -> None:
        self._taken = entries
        calls: list[ScalerFuture[Any]] = []
        for entry in entries:
            if isinstance(entry, ScalerFuture):
                calls.append(entry)
                continue
            if calls:
                self._core.handle(CallsSubmitted(calls), now)
                calls = []
            self._core.handle(entry, now)
        if calls:
            self._core.handle(CallsSubmitted(calls), now)
        self._taken = []

    def _sleep(self, transport: Transport, busy: bool) -> None:
        mailbox, woken = self.mailbox, False
        if busy:
            woken = transport.wait(mailbox.fileno(), PAUSE_SECONDS)
        elif mailbox.fall_asleep():
            now, due = time.monotonic(), transport.due()
            if (settle_at := self._core.due()) is not None:
                due = min(due, settle_at)
            woken = transport.wait(mailbox.fileno(), min(due - now, IDLE_SECONDS))
            mailbox.wake_up()
        if woken:
            mailbox.drain()

    def _leave(self, transport: Transport | None, failure: ClientQuitError | None) -> None:
        steps: Sequence[Callable[[], object]] = (
            lambda: self._end_all(failure),
            lambda: self._end_waiting(failure),
            self.gate.wake,
            lambda: self.worker_lists.end(failure),
            lambda: self.session_queries.end(failure),
            lambda: _say_goodbye(transport),
            lambda: self._close_storage(failure or ClientQuitError()),
            self._callbacks.stop,
            self.mailbox.free,
            lambda: _living.discard(self),
        )
        for step in steps:  # an exception of one step does not skip the others
            try:
                step()
            except Exception:
                _log.exception("a client could not perform a step of closing")

    def _end_all(self, failure: ClientQuitError | None) -> None:
        """End all calls: those of the core, and those still in the mailbox."""
        now, entries = time.monotonic(), [*self._taken, *self.mailbox.take()]
        self._accept([entry for entry in entries if isinstance(entry, ScalerFuture | CallBlock | GraphPiece)], now)
        self._core.handle(ClientClosed(failure), now)
        effects = self._core.settle(now)
        self._perform_each(effect for effect in effects if isinstance(effect, Deliver | Cleared | KeepObjects))

    def _close_storage(self, refusal: ClientQuitError) -> None:
        self.storage.refuse(refusal)
        if not self._inside:
            self.storage.close()

    def _end_waiting(self, failure: ClientQuitError | None) -> None:
        if not self._connected.is_set():
            self._connect_error = failure
            self._connected.set()
        self._shutdown_answered.set()


def _results_among(needs: Sequence[Dependency]) -> Iterator[StoredObject]:
    """The results in object storage that tasks depend on."""
    for outcome in [need.outcome() for need in needs]:
        if isinstance(outcome, tuple) and type(outcome[1]) is StoredPayload:
            yield outcome[1].object


def _say_goodbye(transport: Transport | None) -> None:
    if transport is None:
        return
    try:
        transport.send(Goodbye("the client has left"))
        transport.flush(time.monotonic())
    finally:
        transport.close()


def _print(output: Print) -> None:
    for stream, text in output.texts:
        target = sys.stdout if stream == 1 else sys.stderr
        if target is not None:
            target.write(text.decode("utf-8", "replace"))
            target.flush()


_living: weakref.WeakSet[IoThread] = weakref.WeakSet()


def _leave_all() -> None:
    for living in [living for living in _living if living._named]:
        living.leave(LEAVE_SECONDS)
    deadline = time.monotonic() + GOODBYE_SECONDS
    for living in list(_living):
        living.mailbox.close(ClientQuitError())
        living.mailbox.wake()
    for living in list(_living):
        living.stop(max(0.0, deadline - time.monotonic()))
    due_callbacks.wait()


def _poison_all() -> None:
    for living in list(_living):
        living.poison()
    _living.clear()


atexit.register(_leave_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_poison_all)
