"""Operators: peers without tasks, which may cancel any task, drain any worker, take a profile and ask for a dump."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind
from scaler_protocol.operations import Drain, Dump, TakeProfile
from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.core.profiling import Profiling
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import DONE, GONE


class Operators:
    """The connected operators, and their requests."""

    def __init__(self, state: SchedulerState, completion: Completion) -> None:
        self.profiling = Profiling(state)
        self._state = state
        self._completion = completion
        self._names: dict[bytes, str] = {}

    def __contains__(self, peer: object) -> bool:
        return peer in self._names

    def joined(self, peer: bytes, hello: Hello) -> None:
        """An operator has connected."""
        self._names[peer] = hello.name or hello.host
        self._state.log(
            f"operator {self._names[peer]} connected from {hello.host}", EventKind.CLIENT, subject=self._names[peer]
        )

    def left(self, peer: bytes) -> None:
        """An operator is gone; its requests stay in force, but nobody waits for a profile."""
        self.profiling.operator_left(peer)
        del self._names[peer]

    def cancel(self, peer: bytes, tasks: Iterable[int], now: float) -> None:
        """Cancel tasks in any state; their owners are sent CANCELLED, and so are their dependents'."""
        for task in tasks:
            record = self._state.find(task)
            if record is None or record.state in (DONE, GONE):
                self._state.event_log.not_found += 1
                continue
            self._completion.take_back(record)
            self._completion.end(record, Status.CANCELLED, b"", now)
            self._state.event_log.add_text(logging.WARNING, EventKind.RUN, f"{self._names[peer]} cancelled it", task)

    def drain(self, peer: bytes, event: Drain, now: float) -> None:
        """Have a worker end after its current run; raises ProtocolError if the peer is not an operator."""
        if peer not in self._names:
            raise ProtocolError("only an operator may drain workers")
        for agent in self._state.agents.values():
            if agent.number == event.agent:
                if event.pid:
                    self._state.send(agent.peer, event)
                else:
                    self._state.drain(agent)
                text = f"{self._names[peer]} drains {_subject(event)} {agent.name or agent.host}"
                self._state.log(text, EventKind.AGENT, subject=agent.host)
                return
        text = f"{self._names[peer]} wants to drain {_subject(event)} an agent that is gone"
        self._state.log(text, EventKind.AGENT)

    def profile(self, peer: bytes, event: TakeProfile, now: float) -> None:
        """Have a profile taken; raises ProtocolError if the peer is not an operator."""
        if peer not in self._names:
            raise ProtocolError("only an operator may take a profile")
        self.profiling.ask(peer, self._names[peer], event, now)

    def dump(self, peer: bytes, event: Dump, now: float) -> None:
        """Have a dump sent; raises ProtocolError if the peer is not an operator."""
        if peer not in self._names:
            raise ProtocolError("only an operator may ask for a dump")
        self._state.out.append(WriteDump(peer))


def _subject(event: Drain) -> str:
    return f"process {event.pid} of" if event.pid else "all workers of"
