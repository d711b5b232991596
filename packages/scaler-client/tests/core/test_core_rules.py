"""ClientCore against a model of the scheduler, whatever happens in whatever order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scaler_client.core.core import ClientCore
from scaler_client.core.effects import Transmit
from scaler_client.core.events import CallsSubmitted, TasksCancelled
from scaler_client.core.records import CallBlock, CallGroup, Deliver, Dependency, FunctionBody
from scaler_io.links.events import LinkDown, LinkUp
from scaler_protocol.handshake import Welcome
from scaler_protocol.messages import (
    Cancel,
    Done,
    Functions,
    Group,
    Message,
    NeedFunctions,
    NeedTasks,
    Reconcile,
    Release,
    Status,
    Submit,
)
from scaler_protocol.payloads import Payloads
from support.examples import examples

CREDIT = 4000
GROUPS = [
    CallGroup(Group(bytes([number])), (FunctionBody(bytes([number]), f"m:f{number}", b"body"),), bytes, bytes, parent)
    for number, parent in [(1, 0), (2, 0), (3, 9)]
]


@dataclass(eq=False)
class NotedCall:
    """A single call, as the core sees one."""

    task_id: int
    _group: CallGroup
    _call: bytes
    _needs: Sequence[Dependency] = ()

    @property
    def _weight(self) -> int:
        return len(self._call)

    def _call_of(self, task: int) -> bytes:
        return self._call

    def _needs_of(self, task: int) -> Sequence[Dependency]:
        return self._needs


class ClientMachine(RuleBasedStateMachine):
    """The scheduler in the model remembers calls, answers them in any order, and may be replaced by a new one."""

    @initialize(credit=st.sampled_from([CREDIT, 100]))
    def begin(self, credit: int) -> None:
        self.core = ClientCore("tcp://127.0.0.1:1")
        self.credit = credit
        self.now = 0.0
        self.count = 0
        self.up = False
        self.calls: dict[int, bytes] = {}
        self.delivered: dict[int, bytes] = {}
        self.cancelled: set[int] = set()
        self.known: dict[int, bytes] = {}
        self.functions: set[bytes] = set()
        self.answered: list[int] = []
        self.released: list[int] = []

    # --- users ------------------------------------------------------------------------------------------------------

    @rule(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5), group=st.sampled_from(GROUPS))
    def submit(self, sizes: list[int], group: CallGroup) -> None:
        calls = []
        for size in sizes:
            self.count += 1
            self.calls[self.count] = bytes(size)
            calls.append(NotedCall(self.count, group, bytes(size)))
        self.core.handle(CallsSubmitted(calls), self.now)

    @rule(size=st.integers(1, 40), group=st.sampled_from(GROUPS))
    def submit_block(self, size: int, group: CallGroup) -> None:
        block = CallBlock(self.count + 1, group, [b"block"] * size, lambda: None)
        for task in block.tasks:
            self.calls[task] = b"block"
        self.count += size
        self.core.handle(block, self.now)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        # Singles one by one, blocks as a whole: as futures and maps do.
        task = data.draw(st.sampled_from(sorted(self.calls)))
        tasks = [task]
        if self.calls[task] == b"block":
            while self.calls.get(tasks[0] - 1) == b"block":
                tasks.insert(0, tasks[0] - 1)
            while self.calls.get(tasks[-1] + 1) == b"block":
                tasks.append(tasks[-1] + 1)
        self.core.handle(TasksCancelled(tasks), self.now)
        self.cancelled.update(task for task in tasks if task not in self.delivered)

    # --- the link ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.up)
    @rule(forgotten=st.booleans())
    def link_up(self, forgotten: bool) -> None:
        if forgotten or not self.functions:
            self.known, self.functions = {}, set()
        self.up = True
        self.core.handle(LinkUp(Welcome(1, session_credit=self.credit), resumed=not forgotten), self.now)

    @precondition(lambda self: self.up)
    @rule()
    def link_down(self) -> None:
        self.settle()  # what was said before is in the stream, and arrives when the link resumes
        self.up = False
        self.core.handle(LinkDown("cut"), self.now)

    # --- the scheduler ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.up and self.known)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        tasks = data.draw(st.lists(st.sampled_from(sorted(self.known)), min_size=1, max_size=10, unique=True))
        self.done(tasks)

    def done(self, tasks: Sequence[int]) -> None:
        results = [b"result of %d" % task for task in tasks]
        for task in tasks:
            self.known.pop(task, None)
        self.answered.extend(tasks)
        self.core.handle(Done(tasks, [Status.VALUE] * len(tasks), Payloads(results)), self.now)

    @precondition(lambda self: self.up and self.answered)
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        self.done([data.draw(st.sampled_from(self.answered))])

    @precondition(lambda self: self.up)
    @rule(group=st.sampled_from(GROUPS))
    def ask_for_function(self, group: CallGroup) -> None:
        self.core.handle(NeedFunctions([group.bodies[0].id]), self.now)

    @precondition(lambda self: self.up)
    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    # --- effects ----------------------------------------------------------------------------------------------------

    @rule()
    def settle(self) -> None:
        for effect in self.core.settle(self.now):
            if isinstance(effect, Transmit):
                assert self.up
                self.hear(effect.message)
            elif isinstance(effect, Deliver):
                self.deliver(effect)
        self.core.check()
        assert sum(map(len, self.known.values())) <= max(self.credit, 300 + 40 * 5) + 300
        due = self.core.due()
        assert due is None or due <= self.now + 0.05

    def hear(self, message: Message) -> None:
        if isinstance(message, Submit):
            groups = [group.function for group in message.groups]
            self.functions.update(message.functions)
            assert self.functions.issuperset(groups)
            assert bool(message.parent) == (groups == [b"\x03"])
            for task, call in zip(message.tasks, message.calls, strict=True):
                assert self.calls[task] == call
                self.known[task] = call
        elif isinstance(message, Cancel):
            for task in message.tasks:
                self.known.pop(task, None)
        elif isinstance(message, Reconcile):
            missing = [task for task in message.wanted if task not in self.known]
            if missing:
                self.core.handle(NeedTasks(missing), self.now)
        elif isinstance(message, Release):
            self.released.extend(message.tasks)
        else:
            assert isinstance(message, Functions)

    def deliver(self, effect: Deliver) -> None:
        columns: Any = zip(effect.calls, effect.tasks, effect.results, strict=True)
        for call, task, result in columns:
            if call is not None:
                assert task not in self.delivered and result == b"result of %d" % task
                self.delivered[task] = result

    @invariant()
    def nothing_is_released_that_was_not_answered(self) -> None:
        if hasattr(self, "released"):
            assert len(self.released) <= len(self.answered)

    def teardown(self) -> None:
        """Whatever happened: with a link and an honest scheduler everything ends."""
        if not hasattr(self, "core"):
            return
        if not self.up:
            self.link_up(forgotten=True)
        for _ in range(10 * (self.count + 1)):
            self.now += 0.1
            self.settle()
            if self.known:
                self.done(list(self.known))
        assert self.delivered.keys() >= self.calls.keys() - self.cancelled
        assert sorted(self.released) == sorted(self.answered)


TestClientCore = ClientMachine.TestCase
TestClientCore.settings = settings(max_examples=examples(75), stateful_step_count=40, deadline=None)
