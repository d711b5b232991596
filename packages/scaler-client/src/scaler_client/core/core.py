"""ClientCore: the state of outstanding calls, and the messages that follow from it. Pure, no IO.

Theory. A task is *waiting* (in the queue, not sent), *sent*, or gone: its outcome was delivered, or it was cancelled.
The core keeps its call until then, because a restarted scheduler may request it again.

    submit ─▶ waiting ──credit──▶ sent ──Done──▶ delivered         cancel: any ─▶ gone, without delivery
                                   │  ▲
                       NeedTasks   └──┘

The session's credit bounds the bytes of sent calls; a task's outcome returns its part. Nodes of a graph have weight 0,
and all of them stay outstanding until the requested nodes have ended. Nothing is sent while the link is down. A link
that *resumed* lost no message. Otherwise the scheduler was restarted or has dropped this session: the core sends
Reconcile with the tasks it wants, and the scheduler requests those that no process holds. A scheduler that has kept a
named session is sent new calls only after that, since it may lack some that they depend on. When the link is refused or
lost, all tasks fail, and so do later ones until a link is up. Those of a named session end here only: the scheduler has
them run, so their objects stay.

The core runs no code of users: what may, the shell does, and reports it as an event.

Invariants (`check`): a waiting or sent task is outstanding; the credit in use is the total weight of the sent tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from scaler_client.core.blocked_runs import BlockedRuns
from scaler_client.core.call_queue import CallQueue
from scaler_client.core.effects import (
    AnswerShutdown,
    Cleared,
    ClientEffect,
    Connected,
    DeleteUnknownObjects,
    KeepObjects,
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
    FuturesAdopted,
    InputDumped,
    MessageRejected,
    ObjectsRestored,
    ProcessesRequested,
    RestoreFailed,
    SessionRequested,
    ShutdownRequested,
    TaskLabelled,
    TasksCancelled,
    UnknownObjectsListed,
    WorkersRequested,
    WorkersUnwanted,
)
from scaler_client.core.graph_state import GraphPiece, GraphTable
from scaler_client.core.held_results import HeldResults
from scaler_client.core.lineage import lineages_of
from scaler_client.core.pending_inputs import PendingInputs
from scaler_client.core.records import (
    CallBlock,
    Deliver,
    Discard,
    LocalFailure,
    Outcome,
    OutstandingCall,
    is_call_known,
)
from scaler_client.core.releases import Releases
from scaler_client.core.resubmissions import Resubmissions
from scaler_client.core.scheduler_link import SchedulerLink
from scaler_client.core.sent_functions import SentFunctions
from scaler_client.core.session_requests import SessionRequests
from scaler_client.core.submit_builder import submit_message, tasks_of
from scaler_client.core.unknown_objects import UnknownObjects
from scaler_client.core.worker_requests import WorkerRequests
from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_protocol.capacity import ListProcesses, ListWorkers, ProcessList, WorkerList
from scaler_protocol.errors import ResultDroppedError, ScalerError
from scaler_protocol.handshake import Goodbye
from scaler_protocol.messages import (
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
    TaskCredit,
    pieces_of,
)
from scaler_protocol.sessions import ConfirmTasks, EndSession, LabelTask, ListTasks, TaskList
from scaler_protocol.storage import DeleteObjects

_NOT_KEPT: Final = ResultDroppedError(
    "nothing is kept of this task any more: see --result-retention-seconds of scaler_scheduler, or it was restarted"
)
RECONCILED: Final = 0
"""The request by which a scheduler is asked whether it has said what it lacks; those of threads have other numbers."""


class ClientCore:
    """The state of a client, without threads and sockets. `handle` is the only way in, `settle` the only way out."""

    def __init__(self, address: str, *, named: bool = False, has_credit: bool = False) -> None:
        """`has_credit`: its Hello names a credit for long results."""
        self._link, self._named, self._has_credit = SchedulerLink(address), named, has_credit
        self._session_requests = SessionRequests()
        self._outstanding: dict[int, OutstandingCall] = {}
        self._queue = CallQueue()
        self._graphs = GraphTable()
        self._cancelled: list[int] = []
        self._functions = SentFunctions()
        self._resubmissions, self._missed = Resubmissions(), list[GraphPiece]()
        self._unknown_objects = UnknownObjects()
        self._held_results = HeldResults()
        self._releases = Releases(self._held_results)
        self._blocked_runs, self._pending_inputs = BlockedRuns(), PendingInputs(self._deferred_failure)
        self.task_credit = 0
        """Tasks that may be unfinished; 0 for any number."""
        self._worker_requests = WorkerRequests()
        self._replies: list[Message] = []
        self._out: list[ClientEffect] = []
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            CallsSubmitted: self._submit,
            CallBlock: self._submit_block,
            GraphPiece: self._submit_piece,
            TasksCancelled: self._cancel,
            BlockingChanged: self._blocked_runs.change,
            ShutdownRequested: self._shut_down,
            ClearRequested: self._clear,
            ClientClosed: self._close,
            MessageRejected: self._reject,
            InputDumped: self._pending_inputs.dumped,
            ObjectsRestored: self._objects_restored,
            RestoreFailed: self._restore_failed,
            UnknownObjectsListed: self._unknown_objects_listed,
            LinkUp: self._link_up,
            LinkDown: self._link.broken,
            LinkLost: self._link_lost,
            LinkRefused: self._link_refused,
            Goodbye: self._cluster_ended,
            Done: self._done,
            NeedFunctions: self._need_functions,
            NeedInputs: self._need_inputs,
            NeedTasks: self._need_tasks,
            Output: self._output,
            ShutdownAnswer: self._shutdown_answer,
            DeleteObjects: self._delete_objects,
            Ended: self._ended,
            TaskCredit: self._credited,
            **self._of_workers(),
            **self._of_named_sessions(),
        }

    def _of_workers(self) -> dict[type[Any], Callable[[Any, float], None]]:
        return {
            WorkersRequested: self._workers_requested,
            ProcessesRequested: self._workers_requested,
            WorkersUnwanted: self._workers_unwanted,
            WorkerList: self._workers_listed,
            ProcessList: self._workers_listed,
        }

    def _of_named_sessions(self) -> dict[type[Any], Callable[[Any, float], None]]:
        return {
            SessionRequested: self._ask_session,
            TaskLabelled: lambda event, now: self._replies.append(self._session_requests.label(event)),
            FuturesAdopted: self._adopt,
            TaskList: self._tasks_listed,
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
        if self._link.failure is not None:
            self._fail_everything(self._link.failure)
        if self._link.up:
            self._send_pending(now)
        if self._unknown_objects.become_garbage(self._outstanding):
            self._out.append(DeleteUnknownObjects())
        out, self._out = self._out, []
        return out

    def _send_pending(self, now: float) -> None:
        if self._session_requests.is_ending:  # calls of other threads end with the client
            ends = [message for message in self._replies if isinstance(message, EndSession)]
            self._replies = [message for message in self._replies if not isinstance(message, EndSession)]
            self._out += map(Transmit, ends)
            return
        before = len(self._out)
        while (batch := self._queue.take()) is not None:
            self._send(submit_message(batch, self._functions.new(batch.groups)))
            self._session_requests.calls_sent()
        if self._blocked_runs:
            self._send(self._blocked_runs.take())
        if self._pending_inputs:
            self._answer_inputs(now)
        for message in self._replies:
            self._send(message)
        self._replies = []
        if self._session_requests.unasked and self._is_all_sent:
            for request in self._session_requests.confirmations():
                self._send(request)
        for release in self._releases.take(now, beside_others=len(self._out) > before):
            self._send(release)

    @property
    def _is_all_sent(self) -> bool:
        """Whether the scheduler was sent all calls, and all inputs that are known."""
        return not self._queue and not self._pending_inputs.is_dumping

    def due(self) -> float | None:
        """The time (time.monotonic) at which `settle` must be called even if no event arrives; None if never."""
        if not self._link.up:
            return None
        release_at, look_at = self._releases.due, self._pending_inputs.due
        if release_at is None or look_at is None:
            return look_at if release_at is None else release_at
        return min(release_at, look_at)

    @property
    def unfinished(self) -> int:
        """How many tasks have no outcome yet; nodes of graphs are among them until the requested ones have ended."""
        return len(self._outstanding)

    def has_room(self, size: int, before: int) -> bool:
        """See CallQueue."""
        return self._queue.has_room(size, before)

    def check(self) -> None:
        """Assert the invariants."""
        self._queue.check(self._outstanding)

    def _answer_inputs(self, now: float) -> None:
        inputs, dump = self._pending_inputs.answer(self._outstanding, now)
        for message in inputs:
            self._send(message)
            self._session_requests.calls_sent()
        if dump is not None:
            self._out.append(dump)

    def _send(self, message: Message) -> None:
        self._out.append(Transmit(message))

    def _graphs_ended(self, tasks: Iterable[int]) -> None:
        """Drop or cancel the nodes of graphs without requested nodes left; rerun deferred nodes that are ready."""
        for graph in self._graphs.ended(tasks):
            if graph.as_tasks:
                self._cancelled += graph.tasks
            else:
                for task in graph.tasks:
                    self._outstanding.pop(task, None)
        if ready := self._graphs.ready_to_rerun():
            self._restore(ready)

    def _restore(self, tasks: Sequence[int]) -> None:
        """Have the lost inputs of these tasks stored or made again."""
        calls = {task: self._outstanding[task] for task in tasks if task in self._outstanding}
        plain = [need for task, call in calls.items() if task not in self._graphs for need in call._needs_of(task)]
        self._out.append(RestoreObjects(tasks, (*plain, *self._graphs.inputs_of(calls))))

    def _drop_cancelled(self) -> None:
        as_tasks = self._graphs.as_tasks(self._cancelled)
        for graph in self._graphs.ended(self._cancelled):
            self._cancelled += graph.tasks
            self._queue.cancel_graph(graph)
        for graph in as_tasks:  # the scheduler treats their nodes as ordinary tasks
            self._cancelled += graph.unneeded(self._outstanding, self._queue.new_tasks())
        self._resubmissions.forget(self._cancelled)
        pop = self._outstanding.pop
        calls = {task: call for task in self._cancelled if (call := pop(task, None)) is not None}
        self._cancelled = []
        sent = self._queue.cancel(calls)
        self._graphs_ended(())
        if sent:
            self._replies += map(Cancel, pieces_of(sent))

    def _fail_all(self, status: int, payload: bytes) -> None:
        if self._named and self._outstanding.keys() - self._queue.new_tasks():
            self._out.append(KeepObjects())  # before these calls let go of theirs
        calls, self._outstanding = self._outstanding, {}
        self._graphs.clear()
        self._cancelled = []
        self._queue.clear()
        self._pending_inputs.clear()
        self._resubmissions.clear()
        self._end(calls, status, payload)

    def _fail_everything(self, failure: ScalerError) -> None:
        """The scheduler cannot be reached: end all calls and requests."""
        if self._outstanding:
            if not self._named:
                self._replies += map(Cancel, pieces_of(list(self._outstanding)))  # the link may come back
            self._fail_all(Status.FAILED, LocalFailure.of(failure))
        self._out += self._worker_requests.fail(failure)
        self._out += self._session_requests.fail(failure)

    def _end(self, calls: dict[int, OutstandingCall], status: int, payload: bytes) -> None:
        if calls:
            self._out.append(Deliver.alike(list(calls.values()), list(calls), status, payload))

    # --- requests ---------------------------------------------------------------------------------------------------

    def _submit(self, event: CallsSubmitted, now: float) -> None:
        calls = event.calls
        self._outstanding.update([(call.task_id, call) for call in calls])
        self._queue.add(calls)

    def _submit_block(self, block: CallBlock, now: float) -> None:
        self._outstanding.update(dict.fromkeys(block.tasks, block))
        self._queue.add((block,))

    def _submit_piece(self, piece: GraphPiece, now: float) -> None:
        self._outstanding.update(dict.fromkeys(piece.tasks, piece))
        self._outstanding.update(piece.requested)
        self._graphs.add(piece)
        self._queue.add((piece,))

    def _ask_session(self, event: SessionRequested, now: float) -> None:
        if (message := self._session_requests.ask(event)) is not None:
            self._replies.append(message)

    def _adopt(self, event: FuturesAdopted, now: float) -> None:
        self._outstanding.update([(call.task_id, call) for call in event.futures])
        tasks = [call.task_id for call in event.futures]
        self._replies += [Reconcile(wanted=wanted) for wanted in pieces_of(tasks)]

    def _cancel(self, event: TasksCancelled, now: float) -> None:
        self._cancelled.extend(event.tasks)

    def _shut_down(self, event: ShutdownRequested, now: float) -> None:
        self._replies.append(Shutdown())

    def _workers_requested(self, event: WorkersRequested | ProcessesRequested, now: float) -> None:
        self._replies.append(self._worker_requests.ask(event))

    def _workers_unwanted(self, event: WorkersUnwanted, now: float) -> None:
        if end := self._worker_requests.drop(event.number):
            self._replies.append(end)

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

    def _objects_restored(self, event: ObjectsRestored, now: float) -> None:
        self._resubmissions.restored(event.server)
        self._resubmissions.take_failures(event.tasks)
        if again := [task for task in event.tasks if task in self._outstanding]:
            self._outstanding.update(nodes := self._graphs.rerun(again))
            for release in self._releases.take_with(again):  # their earlier outcomes are dropped
                self._send(release)
            self._resend([*again, *nodes])

    def _restore_failed(self, event: RestoreFailed, now: float) -> None:
        """Deliver the failures of these tasks, which were kept until now."""
        self._queue.stop_resending(event.tasks)
        failures = self._resubmissions.take_failures(event.tasks)
        self._resubmissions.forget(failures)
        self._releases.add(list(failures), now)
        for task, payload in failures.items():
            if (call := self._outstanding.pop(task, None)) is not None:
                self._queue.return_credit(call._weight)
                self._end({task: call}, Status.FAILED, payload)
        self._graphs_ended(event.tasks)

    def _unknown_objects_listed(self, event: UnknownObjectsListed, now: float) -> None:
        self._unknown_objects.listed(self._outstanding)

    # --- the link ---------------------------------------------------------------------------------------------------

    def _link_up(self, event: LinkUp, now: float) -> None:
        forgotten = self._link.opened(event)
        welcome = event.welcome
        self._queue.credit, self.task_credit = welcome.session_credit, welcome.task_credit
        unused = (welcome.ids_from, welcome.ids_to) if welcome.ids_to else None
        address, token = welcome.storage_address, welcome.session_token
        self._out.append(Connected(None, address, welcome.incarnation, token, welcome.session, unused))
        if forgotten:
            self._start_anew()

    def _start_anew(self) -> None:
        """The scheduler has forgotten what it was sent, or, of a named session, has missed some of it."""
        self._functions.clear()
        self._held_results.forget()
        self._resubmissions.scheduler_changed()
        asked = (ListWorkers, ListProcesses, ListTasks, EndSession, LabelTask)
        gone = asked if self._named else (Cancel, *asked)
        self._replies = [message for message in self._replies if not isinstance(message, gone)]
        self._replies += self._worker_requests.again()
        self._replies += self._session_requests.again()
        self._queue.stop_all_resending()
        self._missed, self._queue.is_held = [], self._named and not self._link.restarted
        unsent, in_pieces = self._queue.tasks(), self._queue.is_held
        for wanted in pieces_of(self._graphs.resume(self._outstanding, unsent, in_pieces=in_pieces)):
            self._send(Reconcile(wanted=wanted))
        if self._queue.is_held:
            self._send(ConfirmTasks(RECONCILED))
        if not self._named:
            self._out.append(ListUnknownObjects())

    def _link_lost(self, event: LinkLost, now: float) -> None:
        self._out.append(Connected(self._link.lost(event)))

    def _cluster_ended(self, event: Goodbye, now: float) -> None:
        self._out.append(Connected(self._link.ended(event)))

    def _link_refused(self, event: LinkRefused, now: float) -> None:
        self._out.append(Connected(self._link.refused(event)))

    # --- messages ---------------------------------------------------------------------------------------------------

    def _done(self, message: Done, now: float) -> None:
        if self._has_credit:
            message = self._held_results.hold(message)
        self._queue.stop_resending(message.tasks)
        pop, again = self._outstanding.pop, self._resubmissions.keep_failures(message, self._outstanding)
        calls = [None if again and task in again else pop(task, None) for task in message.tasks]
        freed = 0
        for call in calls:
            if call is not None:
                freed += call._weight
        self._queue.return_credit(freed)
        if not self._outstanding:
            self._resubmissions.clear()
        outcomes = Deliver.of(message, calls)
        if message.stored:
            outcomes = replace(outcomes, origins=lineages_of(message, calls))
        if self._graphs:
            outcomes = replace(outcomes, results=self._graphs.explain(outcomes))
        self._out.append(outcomes)  # before RestoreObjects: nodes that are rerun drop their delivered failures
        if again and (plain := self._graphs.defer(again)):
            self._restore(plain)
        if self._graphs:
            self._graphs_ended(task for task in message.tasks if task not in again)
        self._releases.add([task for task in message.tasks if task not in again] if again else message.tasks, now)

    def _need_functions(self, message: NeedFunctions, now: float) -> None:
        if answer := self._functions.answer(message, self._outstanding.values()):
            self._replies.append(answer)

    def _need_inputs(self, message: NeedInputs, now: float) -> None:
        self._pending_inputs.ask(message, self._outstanding)

    def _deferred_failure(self, task: int) -> Outcome | None:
        """The failure of a node that is rerun only after the nodes that need it have ended."""
        payload = self._resubmissions.failure(task) if self._graphs.is_deferred(task) else None
        return None if payload is None else (Status.FAILED, payload)

    def _output(self, message: Output, now: float) -> None:
        self._out.append(Print(list(zip(message.streams, message.texts, strict=True))))

    def _shutdown_answer(self, message: ShutdownAnswer, now: float) -> None:
        self._out.append(AnswerShutdown(message.accepted, message.reason))

    def _workers_listed(self, message: WorkerList | ProcessList, now: float) -> None:
        if listed := self._worker_requests.answer(message):
            self._out.append(listed)

    def _tasks_listed(self, message: TaskList, now: float) -> None:
        if message.request == RECONCILED:
            self._send_missed()
        elif answered := self._session_requests.answer(message, all_sent=self._is_all_sent):
            self._out.append(answered)

    def _send_missed(self) -> None:
        """The scheduler has said what it has missed: send that before later calls, which may depend on it."""
        self._queue.add_first([piece for piece in self._missed if piece.graph.requested])
        self._missed, self._queue.is_held = [], False

    def _delete_objects(self, message: DeleteObjects, now: float) -> None:
        self._out.append(Discard(message.objects))

    def _ended(self, message: Ended, now: float) -> None:
        self._graphs.count(map(self._outstanding.get, message.tasks))

    def _credited(self, message: TaskCredit, now: float) -> None:
        self.task_credit = message.tasks

    def _need_tasks(self, message: NeedTasks, now: float) -> None:
        lost = [task for task in message.tasks if (call := self._outstanding.get(task)) and not is_call_known(call)]
        self._end({task: self._outstanding.pop(task) for task in lost}, Status.FAILED, LocalFailure.of(_NOT_KEPT))
        if self._queue.is_held:
            self._missed += self._graphs.missed_pieces(message.tasks, self._outstanding)
        self._resend(self._graphs.resend(message.tasks, self._outstanding))

    def _resend(self, tasks: Iterable[int]) -> None:
        """No process has these tasks: send them again."""
        for task in tasks:
            if (call := self._outstanding.get(task)) is not None:
                self._queue.resend(task, call)
