"""Simulated clients: a real ClientCore each, with futures that remember how they ended."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import cloudpickle

from scaler_client.core.core import ClientCore
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
    SessionAnswered,
    Transmit,
)
from scaler_client.core.events import (
    CallsSubmitted,
    ClientClosed,
    ClientEvent,
    FuturesAdopted,
    ObjectsRestored,
    RestoreFailed,
    TasksCancelled,
    UnknownObjectsListed,
)
from scaler_client.core.graph_state import GraphPiece, GraphTasks
from scaler_client.core.lineage import Lineage, lineage_of
from scaler_client.core.records import CallBlock, CallGroup, Deliver, Dependency, FunctionBody
from scaler_client.objects.handles import StoredObject, StoredPayload
from scaler_client.runtime.remaking import Remaker
from scaler_io.links.events import UplinkEvent
from scaler_io.links.uplink import Uplink
from scaler_io.simulation.network import MemoryDialer, MemoryNetwork
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ScalerError, restore
from scaler_protocol.handshake import Goodbye, Hello, Role
from scaler_protocol.ids import first_task, session_key
from scaler_protocol.messages import Group, Message, Status
from world.plans import BODIES, FUNCTION, Plan, Values, plan_of

_BLOCKS_FROM = 2**31


class WorldFuture:
    """One call, and how it ended."""

    __slots__ = (
        "_call", "_given", "_group", "_needs", "_weight", "caller", "graph", "lineage", "mates", "plan", "task_id",
    )  # fmt: skip

    def __init__(
        self, caller: Caller, task: int, group: CallGroup, plan: Plan, needs: Sequence[WorldFuture] = ()
    ) -> None:
        self.caller, self.task_id, self._group, self.plan, self._needs = caller, task, group, plan, needs
        self._given: Sequence[Dependency] = needs
        """What the client is told of the needs: those nodes of a graph that were not requested have no futures."""
        self.lineage: Lineage | None = None
        """How to make the result of a requested node of a graph again."""
        self._call = plan.call()
        self._weight = len(self._call)
        self.mates: Sequence[WorldFuture] = (self,)
        """The futures of its block: they are cancelled together."""
        self.graph: GraphTasks | None = None
        """An outcome of an intermediate node, which has no future."""

    def _call_of(self, task: int) -> bytes:
        """The payload."""
        return self._call

    def _needs_of(self, task: int) -> Sequence[Dependency]:
        """The futures among the arguments."""
        return self._given

    def share_of(self, name: str) -> int:
        """What a run of it takes of a consumable."""
        group = self._group.wire
        needs = dict(zip(group.capability_names, group.capability_values, strict=True))
        return abs(needs.get(name, 0))

    def runs_on(self, capabilities: Sequence[str]) -> bool:
        """Whether a host that offers these can run it."""
        return set(self._group.wire.capability_names) <= set(capabilities)

    @property
    def needs(self) -> Sequence[WorldFuture]:
        """The futures among its arguments."""
        return self._needs

    def outcome(self) -> tuple[int, bytes] | None:
        """Status and payload, None while there is none."""
        if self.graph is not None:
            return self.graph.outcomes.get(self.task_id)
        answer = self.caller.answers.get(self.task_id)
        return (Status.CANCELLED, b"") if answer is None and self.cancelled else answer

    def _as_input(self) -> tuple[int, bytes] | None:
        return self.outcome()

    @property
    def cancelled(self) -> bool:
        """Whether its owner gave it up before it ended."""
        return self.task_id in self.caller.cancelled

    @property
    def status(self) -> int | None:
        """How it ended, None while it has not."""
        outcome = self.outcome()
        return None if outcome is None else outcome[0]

    @property
    def error(self) -> ScalerError:
        """Why the engine failed it."""
        outcome = self.outcome()
        assert outcome is not None and outcome[0] == Status.FAILED, outcome
        return restore(outcome[1])

    def expected(self) -> tuple[int, bytes]:
        """Status and result if nothing but its own doing goes wrong; the result counts for a VALUE only."""
        inputs = []
        for need in self._needs:
            status, result = need.expected()
            if status != Status.VALUE:
                return status, b""
            inputs.append(result)
        if self.cancelled:
            return Status.CANCELLED, b""
        return self.plan.fate(self._group.wire.retries), self.plan.result(inputs)

    def came_true(self) -> bool:
        """Whether it ended, and as expected."""
        outcome, (status, result) = self.outcome(), self.expected()
        return outcome is not None and outcome[0] == status and (status != Status.VALUE or outcome[1] == result)

    def __repr__(self) -> str:
        return f"<{self.task_id:x} {self.plan} {self.outcome()}>"


class Caller:
    """A ClientCore and the futures of it; requests wait in a hand-off until its process takes a turn."""

    def __init__(self, name: str, session: int, values: Values, *, named: bool = False) -> None:
        self.name, self.session, self._values = name, session, values
        self.core = ClientCore(name, named=named)
        self._remaker = Remaker(self._submit_again)
        self._read: set[WorldFuture] = set()
        """Those whose result is not made again if it is lost."""
        self.listed: dict[int, tuple[str, int, bool]] = {}
        """The tasks of its named session: label, state, and whether it has claimed them."""
        self.confirmed: set[int] = set()
        """Requests for a confirmation that were answered."""
        self.answers: dict[int, tuple[int, bytes]] = {}
        self.cancelled: set[int] = set()
        self.futures: dict[int, WorldFuture] = {}
        self.unfinished: dict[int, WorldFuture] = {}
        self.failure: ScalerError | None = None
        self.can_restore = True
        """Whether lost objects can be stored again."""
        """Why it is, or was at first, not connected."""
        self._requests: list[ClientEvent] = []
        self._groups: dict[tuple[Group, int], CallGroup] = {}
        self._next = first_task(session) + 1
        self._next_block = first_task(session) + _BLOCKS_FROM

    def submit(
        self, *plans: Plan, needs: Sequence[WorldFuture] = (), parent: int = 0, group: Group | None = None
    ) -> list[WorldFuture]:
        """One task per plan."""
        shared = self._group(group or Group(FUNCTION), parent)
        first, self._next = self._next, self._next + len(plans)
        futures = [WorldFuture(self, first + at, shared, plan, needs) for at, plan in enumerate(plans)]
        self._note(futures)
        self.ask(CallsSubmitted(futures))
        return list(futures)

    def map(self, *plans: Plan, needs: Sequence[WorldFuture] = ()) -> list[WorldFuture]:
        """The same as one block of consecutive tasks; the last of them has the needs."""
        shared = self._group(Group(FUNCTION), 0)
        first, self._next_block = self._next_block, self._next_block + len(plans)
        last = len(plans) - 1
        futures = [
            WorldFuture(self, first + at, shared, plan, needs if at == last else ()) for at, plan in enumerate(plans)
        ]
        for future in futures:
            future.mates = futures
        needed: dict[int, Sequence[Dependency]] = {last: needs} if needs else {}
        block = CallBlock(first, shared, [future._call for future in futures], lambda: None, needed)
        self._note(futures)
        self.ask(block)
        return futures

    def graph(
        self, plans: Sequence[Plan], needs: Sequence[Sequence[int]], asked: Sequence[int], size: int = 7
    ) -> list[WorldFuture]:
        """A graph in pieces of so many nodes; `needs` are places of earlier nodes. The futures of those asked for."""
        pieces = self.graph_pieces(plans, needs, asked, size)
        for piece in pieces:
            self.ask(piece)
        return [self.futures[pieces[0].first + at] for at in asked]

    def graph_pieces(
        self, plans: Sequence[Plan], needs: Sequence[Sequence[int]], asked: Sequence[int], size: int
    ) -> list[GraphPiece]:
        """The pieces of a graph, which are not submitted yet; the futures of those asked for are noted."""
        group = self._group(Group(FUNCTION), 0)
        self._next_block -= len(plans)
        first = self._next_block
        nodes: list[WorldFuture] = []
        for at, plan in enumerate(plans):
            nodes.append(WorldFuture(self, first + at, group, plan, [nodes[need] for need in needs[at]]))
            nodes[at]._weight = 0
        graph = GraphTasks(range(first, first + len(plans)), lambda task, failed: "")
        graph.requested = {first + at: nodes[at] for at in asked}
        graph.leases = {first + at: nodes[at] for at in asked}
        for at, node in enumerate(nodes):
            node._given = [graph.need(first + need) for need in needs[at]]
        for at, node in enumerate(nodes):
            node.graph = None if at in asked else graph
        taken = Counter(need for each in needs for need in set(each))
        consumers = [taken[at] for at in range(len(plans))]
        pieces = []
        for start in range(0, len(plans), size):
            places = range(start, min(start + size, len(plans)))
            pairs = [(at - start, first + need) for at in places for need in needs[at]]
            piece = GraphPiece(
                graph,
                first + start,
                {group: 0},
                [0] * len(places),
                [nodes[at]._call for at in places],
                [at for at, _ in pairs],
                [need for _, need in pairs],
                [consumers[at] for at in places],
                [at - start for at in places if at not in asked],
                {},
                {first + at: nodes[at] for at in places if at in asked},
            )
            pieces.append(piece)
        for at in asked:
            nodes[at].lineage = lineage_of(nodes[at], first + at, Status.VALUE)
        self._note([nodes[at] for at in asked])
        return pieces

    def cancel(self, *futures: WorldFuture) -> None:
        """Give these up; what has ended stays as it is."""
        blocks = dict.fromkeys(mate for future in futures for mate in future.mates)
        tasks = [future.task_id for future in blocks if future.outcome() is None]
        self.cancelled.update(tasks)
        for task in tasks:
            del self.unfinished[task]
        self.ask(TasksCancelled(tasks))

    def read(self, future: WorldFuture) -> None:
        """Load its result, which is made again if it is lost, with all others that are lost and not read."""
        if self._is_lost(future):
            self._remake()
        self._read.add(future)

    def _is_lost(self, future: WorldFuture) -> bool:
        status, payload = self.answers.get(future.task_id, (Status.CANCELLED, b""))
        return status == Status.VALUE and not self._values.has(payload)

    def _remake(self) -> None:
        for future in list(self.futures.values()):
            if future.lineage is not None and future not in self._read and self._is_lost(future):
                future.lineage.lost = True
                self._remaker.make(future.lineage)

    def _submit_again(self, group: CallGroup, call: bytes, needs: Sequence[Dependency]) -> Any:
        (future,) = made = [WorldFuture(self, self._next, group, plan_of(call))]
        self._next += 1
        future._given = future._needs = needs  # type: ignore[assignment]
        self._note(made)
        self._read.add(future)
        self.ask(CallsSubmitted(made))
        return future

    def adopt(self, *earlier: WorldFuture) -> list[WorldFuture]:
        """Futures of tasks that an earlier client of the session has submitted."""
        group = CallGroup(Group(b""), (), bytes, bytes)
        futures = [WorldFuture(self, future.task_id, group, future.plan) for future in earlier]
        for future in futures:
            future._call, future._weight = b"", 0
        self._note(futures)
        self.ask(FuturesAdopted(futures))
        return futures

    def ask(self, request: ClientEvent) -> None:
        """Leave a request for the next turn."""
        self._requests.append(request)

    def decide(self, now: float) -> list[Message]:
        """Take what was asked, let the core decide; what is to be sent."""
        self._take_requests(now)
        messages: list[Message] = []
        for effect in self.core.settle(now):
            if isinstance(effect, Transmit):
                messages.append(effect.message)
            else:
                self._perform(effect, now)
        self.core.check()
        return messages

    def _take_requests(self, now: float) -> None:
        requests, self._requests = self._requests, []
        for request in requests:
            self.core.handle(request, now)

    def _perform(self, effect: ClientEffect, now: float) -> None:
        if isinstance(effect, Deliver):
            self._deliver(effect)
        elif isinstance(effect, Connected):
            self.failure = effect.error
            if effect.unused_ids is not None and not self.futures:
                self.session = effect.session
                self._next = first_task(self.session) + max(1, effect.unused_ids[0])
        elif isinstance(effect, SessionAnswered):
            assert not isinstance(effect.answer, ScalerError), effect.answer
            if not effect.answer[0].tasks:
                self.confirmed.add(effect.number)
            for piece in effect.answer:
                rows = zip(piece.labels, piece.states, piece.claimed, strict=True)
                self.listed.update(zip(piece.tasks, rows, strict=True))
        elif isinstance(effect, ListUnknownObjects):
            self.core.handle(UnknownObjectsListed(), now)
        elif isinstance(effect, RestoreObjects):
            self._remake()
            self._take_requests(now)
            restored = ObjectsRestored(effect.tasks, server=1)
            self.core.handle(restored if self.can_restore else RestoreFailed(effect.tasks), now)
        else:
            assert isinstance(effect, Cleared | Print | AnswerShutdown | DeleteUnknownObjects | KeepObjects)

    def _deliver(self, outcomes: Deliver) -> None:
        columns = zip(outcomes.calls, outcomes.tasks, outcomes.statuses, outcomes.results, strict=True)
        for call, task, status, payload in columns:
            if isinstance(call, GraphPiece):
                kept = payload
                if self._values.stored and status == Status.VALUE:
                    kept = StoredPayload.of(StoredObject(self._values, self._values.reference(payload)))
                call.take(task, status, kept)
                continue
            if call is None or task in self.cancelled:
                continue
            assert task not in self.answers, f"{self.name} was answered twice about {task:x}"
            self.answers[task] = (status, payload)
            del self.unfinished[task]
            if isinstance(call, CallBlock):
                call.take(task, status, payload)
                assert call.missing >= 0

    def _group(self, wire: Group, parent: int) -> CallGroup:
        key = (wire, parent)
        if key not in self._groups:
            body = FunctionBody(wire.function, "world:simulated", BODIES[wire.function])
            self._groups[key] = CallGroup(wire, (body,), bytes, bytes, parent)
        return self._groups[key]

    def _note(self, futures: Sequence[WorldFuture]) -> None:
        new = {future.task_id: future for future in futures}
        self.futures.update(new)
        self.unfinished.update(new)

    def check_nothing_is_held(self) -> None:
        """Nothing of the core is left over."""
        core = self.core
        left = (
            core._outstanding,
            core._queue,
            core._releases._tasks,
            core._pending_inputs,
            core._blocked_runs,
            core._replies,
        )
        assert not any(left), (self.name, left)
        assert core._queue._used == 0


class WorldClient(Caller):
    """A client process."""

    def __init__(
        self,
        network: MemoryNetwork,
        address: Address,
        name: str,
        values: Values,
        timeout_seconds: float,
        session_name: str = "",
    ) -> None:
        random: Random = network.random
        super().__init__(name, random.randrange(1, 2**31), values, named=bool(session_name))
        hello = Hello(
            Role.CLIENT,
            random.randbytes(16),
            random.randrange(1, 2**24),
            session=self.session,
            session_name=session_name,
            session_key=session_key(session_name, b"") if session_name else b"",
            name=name,
            host=name,
            python=platform.python_version(),
            cloudpickle=cloudpickle.__version__,
        )
        self.identity = hello.identity
        self.dialer = MemoryDialer(network, address, Uplink(hello, network.now, timeout_seconds=timeout_seconds))
        self.gone = False
        self.messages_sent = 0
        self.shell = network.attach(self.turn, self.dialer)

    def ask(self, request: ClientEvent) -> None:
        super().ask(request)
        self.shell.wake()

    def turn(self, now: float) -> float:
        """What the io thread does."""
        self._hear(self.dialer.turn(now), now)
        for message in self.decide(now):
            self.messages_sent += 1
            self.dialer.uplink.send(message)
        self._hear(self.dialer.flush(now), now)
        due = self.core.due()
        return min(self.dialer.uplink.due(), now + 1.0 if due is None else due)

    def _hear(self, events: Sequence[UplinkEvent], now: float) -> None:
        for event in events:
            self.core.handle(event, now)

    def leave(self, now: float) -> None:
        """Disconnect, as a program does at its end."""
        self.ask(ClientClosed())
        for message in (*self.decide(now), Goodbye("the client has left")):
            self.dialer.uplink.send(message)
        self.dialer.flush(now)
        self.dialer.close()
        self.shell.alive, self.gone = False, True

    def kill(self) -> None:
        """SIGKILL."""
        self.shell.kill()
        self.gone = True
