"""ClientCore: the state of outstanding calls, and the messages that follow from it. Pure, no IO.

Theory. A task is *waiting* (submitted here, not sent), *sent*, or gone: its outcome was delivered, or it was cancelled.
The core keeps its call until then, because a restarted scheduler may request it again.

    submit ─▶ waiting ──credit──▶ sent ──Done──▶ delivered         cancel: any ─▶ gone, without delivery
                                   │  ▲
                       NeedTasks   └──┘

The session's credit bounds the bytes of sent calls; a task's outcome returns its part. Nodes of a graph have weight 0,
and all of them stay outstanding until the requested nodes have ended. Nothing is sent while the link is down. A link
that *resumed* lost no message. Otherwise the scheduler was restarted or has dropped this session: the core sends
Reconcile with the tasks it wants, and the scheduler requests those that no process holds. When the link is refused or
lost, all tasks fail, and so do later ones until a link is up.

Invariants (`check`): a waiting or sent task is outstanding; the credit in use is the total weight of the sent tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from scaler_client.core.effects import (
    AnswerShutdown,
    Cleared,
    ClientEffect,
    Connected,
    DeleteUnknownObjects,
    ListUnknownObjects,
    Print,
    RestoreObjects,
    Transmit,
)
from scaler_client.core.events import (
    BlockingChanged,
    CallsSubmitted,
    ClearRequested,
    ClientClosed,
    ClientEvent,
    InputDumped,
    MessageRejected,
    ObjectsRestored,
    RestoreFailed,
    ShutdownRequested,
    TasksCancelled,
    UnknownObjectsListed,
)
from scaler_client.core.graph_state import GraphPiece, GraphTable
from scaler_client.core.pending_inputs import PendingInputs
from scaler_client.core.records import (
    CallBlock,
    Deliver,
    Discard,
    LocalFailure,
    OutstandingCall,
    ResentCall,
    WaitingCall,
)
from scaler_client.core.releases import Releases
from scaler_client.core.resubmissions import Resubmissions
from scaler_client.core.sent_functions import SentFunctions
from scaler_client.core.submit_builder import SubmitBuilder, is_uploaded, submit_message, tasks_of
from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_protocol.errors import HandshakeRefusedError, ScalerError, SchedulerLostError
from scaler_protocol.handshake import SESSION_CREDIT, Goodbye
from scaler_protocol.messages import (
    MESSAGE_LIMIT,
    Blocked,
    Cancel,
    Done,
    Ended,
    Message,
    NeedFunctions,
    NeedInputs,
    NeedTasks,
    Output,
    Reconcile,
    Shutdown,
    ShutdownAnswer,
    Status,
)
from scaler_protocol.storage import DeleteObjects

MESSAGE_TASKS = 4096


class ClientCore:
    """The state of a client, without threads and sockets. `handle` is the only way in, `settle` the only way out."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._up = False
        self._was_up = False
        self._failure: ScalerError | None = None
        self._down_reason = ""
        self._credit = SESSION_CREDIT
        self._used = 0
        self._outstanding: dict[int, OutstandingCall] = {}
        self._waiting: deque[WaitingCall | GraphPiece] = deque()
        self._resending: dict[int, ResentCall] = {}
        self._graphs = GraphTable()
        self._cancelled: list[int] = []
        self._functions = SentFunctions()
        self._resubmissions = Resubmissions()
        self._pending_at_listing: list[int] | None = None
        """Tasks that were outstanding when storage listed the objects of this session, and may own some of them."""
        self._releases = Releases()
        self._blocked: dict[int, bool] = {}
        self._pending_inputs = PendingInputs()
        self._replies: list[Message] = []
        self._out: list[ClientEffect] = []
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            CallsSubmitted: self._submit,
            CallBlock: self._submit_block,
            GraphPiece: self._submit_piece,
            TasksCancelled: self._cancel,
            BlockingChanged: self._blocking_changed,
            ShutdownRequested: self._shut_down,
            ClearRequested: self._clear,
            ClientClosed: self._close,
            MessageRejected: self._reject,
            InputDumped: self._input_dumped,
            ObjectsRestored: self._objects_restored,
            RestoreFailed: self._restore_failed,
            UnknownObjectsListed: self._unknown_objects_listed,
            LinkUp: self._link_up,
            LinkDown: self._link_down,
            LinkLost: self._link_lost,
            LinkRefused: self._link_refused,
            Goodbye: self._goodbye,
            Done: self._done,
            NeedFunctions: self._need_functions,
            NeedInputs: self._need_inputs,
            NeedTasks: self._need_tasks,
            Output: self._output,
            ShutdownAnswer: self._shutdown_answer,
            DeleteObjects: self._delete_objects,
            Ended: self._ended,
        }

    def handle(self, event: ClientEvent, now: float) -> None:
        """Handle one event; unexpected messages are ignored."""
        if handler := self._handlers.get(type(event)):
            handler(event, now)

    # --- effects ----------------------------------------------------------------------------------------------------

    def settle(self, now: float) -> list[ClientEffect]:
        """Make all pending decisions once; return the effects to perform, in order."""
        if self._cancelled:
            self._drop_cancelled()
        if self._failure is not None and self._outstanding:
            self._replies.append(Cancel(list(self._outstanding)))  # the link may come back
            self._fail_all(Status.FAILED, LocalFailure.of(self._failure))
        if self._up:
            while self._waiting and self._submit_some():
                pass
            if self._blocked:
                self._send(Blocked(list(self._blocked), list(self._blocked.values())))
                self._blocked = {}
            if self._pending_inputs:
                self._answer_inputs(now)
            for message in self._replies:
                self._send(message)
            self._replies = []
            if release := self._releases.take(now):
                self._send(release)
        if self._pending_at_listing is not None:
            self._check_listed(self._pending_at_listing)
        out, self._out = self._out, []
        return out

    def _check_listed(self, pending: list[int]) -> None:
        while pending and pending[-1] not in self._outstanding:
            pending.pop()
        if not pending:
            self._pending_at_listing = None
            self._out.append(DeleteUnknownObjects())

    def due(self) -> float | None:
        """The time (time.monotonic) at which `settle` must be called even if no event arrives; None if never."""
        times = (self._releases.due, self._pending_inputs.due) if self._up else ()
        return min([time for time in times if time is not None], default=None)

    def check(self) -> None:
        """Assert the invariants."""
        waiting = self._unsent()
        assert self._resending.keys() <= waiting
        assert all(call in self._outstanding for call in waiting) or self._graphs
        assert self._used == sum(call._weight for task, call in self._outstanding.items() if task not in waiting)

    def _answer_inputs(self, now: float) -> None:
        inputs, dump = self._pending_inputs.answer(self._outstanding, now)
        if inputs is not None:
            self._send(inputs)
        if dump is not None:
            self._out.append(dump)

    def _send(self, message: Message) -> None:
        self._out.append(Transmit(message))

    def _submit_some(self) -> bool:
        """Send one message of waiting calls; False if the next call exceeds the credit or is not uploaded yet."""
        first = self._waiting[0]
        size = first._weight * (len(first.calls) if type(first) is CallBlock else 1)
        if not is_uploaded(first) or (self._used and size and self._used + size > self._credit):
            return False
        builder: SubmitBuilder | GraphPiece
        if isinstance(first, GraphPiece):
            builder = first
            self._waiting.popleft()
        else:
            builder = SubmitBuilder(first._group.parent, MESSAGE_TASKS)
            builder.fill(self._waiting, min(MESSAGE_LIMIT, self._credit - self._used))
            self._used += builder.size
        if self._resending:
            for task in builder.tasks:
                self._resending.pop(task, None)
        self._send(submit_message(builder, self._functions.new(builder.groups)))
        return True

    def _unsent(self) -> set[int]:
        unsent: set[int] = set()
        for call in self._waiting:
            unsent.update(call.tasks if isinstance(call, CallBlock | GraphPiece) else (call.task_id,))
        return unsent

    def _graphs_ended(self, tasks: Iterable[int]) -> None:
        """Drop or cancel the nodes of graphs without requested nodes left; rerun deferred nodes that are ready."""
        for graph in self._graphs.ended(tasks):
            if graph.as_tasks:
                self._cancelled += graph.tasks
            else:
                for task in graph.tasks:
                    self._outstanding.pop(task, None)
        if ready := self._graphs.ready_to_rerun():
            self._out.append(RestoreObjects(ready))

    def _drop_cancelled(self) -> None:
        as_tasks = self._graphs.as_tasks(self._cancelled)
        for graph in self._graphs.ended(self._cancelled):
            self._cancelled += graph.tasks
            self._waiting = deque(call for call in self._waiting if getattr(call, "graph", None) is not graph)
        for graph in as_tasks:  # the scheduler treats their nodes as ordinary tasks
            self._cancelled += graph.unneeded(self._outstanding, self._unsent() - self._resending.keys())
        self._stop_asking(self._cancelled)
        self._resubmissions.forget(self._cancelled)
        unsent, gone, sent = set(self._waiting), set(), []
        for task in self._cancelled:
            call = self._outstanding.pop(task, None)
            if call is None:
                continue
            gone.add(task)
            if call not in unsent:
                self._used -= call._weight
                sent.append(task)
        self._cancelled = []
        if unsent and gone:
            self._waiting = deque(call for call in self._waiting if call.task_id not in gone)
        self._graphs_ended(())
        if sent:
            self._replies.append(Cancel(sent))

    def _fail_all(self, status: int, payload: bytes) -> None:
        calls, self._outstanding = self._outstanding, {}
        self._graphs.clear()
        self._used, self._cancelled, self._resending = 0, [], {}
        self._pending_inputs.clear()
        self._waiting.clear()
        self._end(calls, status, payload)

    def _end(self, calls: dict[int, OutstandingCall], status: int, payload: bytes) -> None:
        if calls:
            self._out.append(Deliver.alike(list(calls.values()), list(calls), status, payload))

    # --- requests ---------------------------------------------------------------------------------------------------

    def _submit(self, event: CallsSubmitted, now: float) -> None:
        calls = event.calls
        self._outstanding.update([(call.task_id, call) for call in calls])
        self._waiting.extend(calls)

    def _submit_block(self, block: CallBlock, now: float) -> None:
        self._outstanding.update(dict.fromkeys(block.tasks, block))
        self._waiting.append(block)

    def _submit_piece(self, piece: GraphPiece, now: float) -> None:
        self._outstanding.update(dict.fromkeys(piece.tasks, piece))
        self._outstanding.update(piece.requested)
        self._graphs.add(piece)
        self._waiting.append(piece)

    def _cancel(self, event: TasksCancelled, now: float) -> None:
        self._cancelled.extend(event.tasks)

    def _blocking_changed(self, event: BlockingChanged, now: float) -> None:
        if self._blocked.get(event.run) is (not event.blocked):
            del self._blocked[event.run]
        else:
            self._blocked[event.run] = event.blocked

    def _shut_down(self, event: ShutdownRequested, now: float) -> None:
        self._replies.append(Shutdown())

    def _clear(self, event: ClearRequested, now: float) -> None:
        calls = self._outstanding.copy()
        self._cancelled.extend(calls)
        self._drop_cancelled()
        self._functions.clear()
        self._end(calls, Status.CANCELLED, b"")
        self._out.append(Cleared(event.number))

    def _close(self, event: ClientClosed, now: float) -> None:
        if event.failure is not None:
            self._fail_all(Status.FAILED, LocalFailure.of(event.failure))
        else:
            self._fail_all(Status.CANCELLED, b"")

    def _reject(self, event: MessageRejected, now: float) -> None:
        self._functions.forget(event.message)
        tasks = tasks_of(event.message, self._outstanding)
        calls = {task: call for task in tasks if (call := self._outstanding.get(task)) is not None}
        self._end(calls, Status.FAILED, LocalFailure.of(event.error))
        self._cancelled.extend(calls)

    def _input_dumped(self, event: InputDumped, now: float) -> None:
        self._pending_inputs.dumped(event.task, event.outcome)

    def _objects_restored(self, event: ObjectsRestored, now: float) -> None:
        self._resubmissions.take(event.tasks)
        if again := [task for task in event.tasks if task in self._outstanding]:
            self._outstanding.update(nodes := self._graphs.rerun(again))
            self._send(self._releases.take_with(again))  # their earlier outcomes are dropped
            self._resend([*again, *nodes])

    def _restore_failed(self, event: RestoreFailed, now: float) -> None:
        """Deliver the failures that were held back for these tasks."""
        self._stop_asking(event.tasks)
        for task, payload in self._resubmissions.take(event.tasks).items():
            if (call := self._outstanding.pop(task, None)) is not None:
                self._used -= call._weight
                self._end({task: call}, Status.FAILED, payload)
        self._graphs_ended(event.tasks)

    def _unknown_objects_listed(self, event: UnknownObjectsListed, now: float) -> None:
        self._pending_at_listing = list(self._outstanding)

    # --- the link ---------------------------------------------------------------------------------------------------

    def _link_up(self, event: LinkUp, now: float) -> None:
        self._up, self._failure, self._credit = True, None, event.welcome.session_credit
        self._out.append(Connected(None, event.welcome.storage_address, event.welcome.incarnation))
        if self._was_up and not event.resumed:
            self._functions.clear()
            self._replies = [message for message in self._replies if not isinstance(message, Cancel)]
            self._stop_asking(list(self._resending))
            self._send(Reconcile(wanted=self._graphs.resume(self._outstanding, self._unsent())))
            self._out.append(ListUnknownObjects())
        self._was_up = True

    def _link_down(self, event: LinkDown, now: float) -> None:
        self._up, self._down_reason = False, event.reason

    def _goodbye(self, event: Goodbye, now: float) -> None:
        self._down_reason = event.reason or "it has ended"

    def _link_lost(self, event: LinkLost, now: float) -> None:
        remedy = "" if self._was_up else f"; is it running? Start one with: scaler_scheduler {self._address}"
        why = f" ({self._down_reason})" if self._down_reason else ""
        self._fail(SchedulerLostError(f"{event.reason} to the scheduler at {self._address}{why}{remedy}"))

    def _link_refused(self, event: LinkRefused, now: float) -> None:
        reasons = "; ".join(event.reasons)
        self._fail(HandshakeRefusedError(f"the scheduler at {self._address} refuses this client: {reasons}"))

    def _fail(self, error: ScalerError) -> None:
        self._up, self._failure = False, error
        self._out.append(Connected(error))

    # --- messages ---------------------------------------------------------------------------------------------------

    def _done(self, message: Done, now: float) -> None:
        if self._resending:
            self._stop_asking(message.tasks)
        pop, held = self._outstanding.pop, self._resubmissions.hold_back(message, self._outstanding)
        calls = [None if held and task in held else pop(task, None) for task in message.tasks]
        if held and (plain := self._graphs.defer(held)):
            self._out.append(RestoreObjects(plain))
        freed = 0
        for call in calls:
            if call is not None:
                freed += call._weight
        self._used -= freed
        outcomes = Deliver.of(message, calls)
        if self._graphs:
            outcomes = replace(outcomes, results=self._graphs.explain(outcomes))
            self._graphs_ended(task for task in message.tasks if task not in held)
        self._out.append(outcomes)
        self._releases.add([task for task in message.tasks if task not in held] if held else message.tasks, now)

    def _need_functions(self, message: NeedFunctions, now: float) -> None:
        if answer := self._functions.answer(message, self._outstanding.values()):
            self._replies.append(answer)

    def _need_inputs(self, message: NeedInputs, now: float) -> None:
        self._pending_inputs.ask(message, self._outstanding)

    def _output(self, message: Output, now: float) -> None:
        self._out.append(Print(list(zip(message.streams, message.texts, strict=True))))

    def _shutdown_answer(self, message: ShutdownAnswer, now: float) -> None:
        self._out.append(AnswerShutdown(message.accepted, message.reason))

    def _delete_objects(self, message: DeleteObjects, now: float) -> None:
        self._out.append(Discard(message.objects))

    def _ended(self, message: Ended, now: float) -> None:
        self._graphs.count(map(self._outstanding.get, message.tasks))

    def _need_tasks(self, message: NeedTasks, now: float) -> None:
        self._resend(self._graphs.resend(message.tasks, self._outstanding))

    def _resend(self, tasks: Iterable[int]) -> None:
        """No process holds these tasks: queue them again and return their credit."""
        for task in tasks:
            call = self._outstanding.get(task)
            if call is not None and task not in self._resending:
                again = call.resent_call(task) if isinstance(call, GraphPiece) else ResentCall.of(call, task)
                self._resending[task] = again
                self._waiting.append(again)
                self._used -= call._weight

    def _stop_asking(self, tasks: Iterable[int]) -> None:
        """Remove these tasks from those queued for resending."""
        gone = {task for task in tasks if task in self._resending}
        if gone:
            self._used += sum(self._resending.pop(task)._weight for task in gone)
            self._waiting = deque(call for call in self._waiting if call.task_id not in gone)
