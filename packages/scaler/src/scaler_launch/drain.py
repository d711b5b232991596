"""`scaler drain`: has agents finish their tasks and leave, and waits until they have left."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from scaler_io.security.keyring import OPERATOR_KEYS
from scaler_io.service.cli import Command
from scaler_io.service.operator_link import OperatorLink
from scaler_io.service.options import KEYS, Option, UsageError, positive_seconds
from scaler_io.transport.own_keys import credentials_for
from scaler_launch.status import listening_to
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ScalerError
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.operations import Drain
from scaler_ui.listening import Listening
from scaler_ui.model.model import MonitorEvent

_ANSWER_SECONDS: Final = 30.0
"""How long the scheduler may take to answer."""
_NAMES_SHOWN: Final = 10
_LEFT: Final = (
    "They are lost if no other agent is on that host; results among them are made again where the call is known"
)


class NotDrainedError(ScalerError, ConnectionError):
    """The scheduler cannot be told, or has no such agent."""


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """The command line of `scaler drain`."""

    address: Address
    agents: tuple[str, ...]
    host: tuple[str, ...]
    wait: bool
    timeout_seconds: float
    keys: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        if not self.agents and not self.host:
            raise UsageError("name agents, as `scaler status --json` lists them, or hosts with --host")


DRAIN: Final = Command(
    program="scaler drain",
    description="Have agents finish their tasks, hand over what only they have, and leave; wait until they have left.",
    section="drain",
    config=DrainOptions,
    options=(
        Option(("address", "scheduler_address"), "the scheduler", Address.parse_peer),
        Option(
            ("agents",),
            "the name of an agent, or of the unit that it is; `scaler status --json` lists them",
            default=(),
            repeated=True,
            metavar="AGENT",
        ),
        *KEYS,
        Option(("--host",), "drain all agents of this host, too", default=(), repeated=True, metavar="NAME"),
        Option(("--wait",), "wait until they have left; otherwise until they drain", default=True, flag=True),
        Option(("--timeout-seconds", "-t"), "how long to wait at most", positive_seconds, default=300.0),
    ),
    example="scaler drain tcp://127.0.0.1:2345 node7:4711 --host node8",
)


def run(words: Sequence[str]) -> int:
    """Drain the agents; returns 0 if all have left, 1 if one was lost, left objects behind, or is still there.

    Raises NotDrainedError or NoStatusError if no scheduler answers, or has no such agent, and KeyFileError for wrong
    keys. An order that was given stays in force.
    """
    options = DRAIN.read(words)
    until = time.monotonic() + options.timeout_seconds
    answered = min(until, time.monotonic() + _ANSWER_SECONDS)
    credentials = credentials_for(options.address, options.keys, options.insecure, OPERATOR_KEYS)
    link = OperatorLink(options.address, "scaler drain", ServiceKind.SCHEDULER, credentials=credentials)
    try:
        with listening_to(options.address, options.keys, options.insecure, OPERATOR_KEYS) as listening:
            drained = _DrainedAgents(link, listening, options.address)
            drained.order(options, answered)
            return drained.follow(options, until)
    finally:
        link.close()


def chosen(status: MonitorStatus, agents: Iterable[str], hosts: Iterable[str]) -> dict[int, str]:
    """The names of the agents that these names, units and hosts mean, by number; raises NotDrainedError."""
    found: dict[int, str] = {}
    for kind, wanted, columns in (
        ("agent or unit", agents, (status.agent_names, status.agent_units)),
        ("host with an agent", hosts, (status.agent_hosts,)),
    ):
        for word in wanted:
            matching = [at for at in range(len(status.agents)) if any(column[at] == word for column in columns)]
            if not matching:
                known = sorted({name for column in columns for name in column if name})
                raise NotDrainedError(f"no {kind} is called {word!r}{_advice(word, known)}; nothing was drained")
            found |= {status.agents[at]: status.agent_names[at] for at in matching}
    return found


def _advice(word: str, known: Sequence[str]) -> str:
    if near := difflib.get_close_matches(word, known, n=1):
        return f"; did you mean {near[0]}?"
    more = " …" if len(known) > _NAMES_SHOWN else ""
    return f"; connected: {', '.join(known[:_NAMES_SHOWN])}{more}" if known else "; none is connected"


class _DrainedAgents:
    """The agents that are drained, and what has become of them."""

    def __init__(self, link: OperatorLink, listening: Listening, address: Address) -> None:
        self._link, self._listening, self._address = link, listening, address
        self._left: dict[int, str] = {}
        """Names of the agents that are still awaited, by number."""
        self._missing: dict[int, float] = {}
        """The uptime when a status first lacked an awaited agent: the event that says why comes with the next one."""
        self._incarnation = 0

    def order(self, options: DrainOptions, until: float) -> None:
        """Find the agents and give the order."""
        # Numbers of agents mean nothing to another scheduler: the link comes first, and what is chosen is sent over it.
        while not self._link.is_up:
            self._turn()
            if self._link.problem:
                raise NotDrainedError(f"the scheduler at {self._address} takes no order: {self._link.problem}")
            if time.monotonic() >= until:
                raise NotDrainedError(f"no scheduler answers at {self._address}; is it running there?")
        self._listening.wait_for(lambda model: model.status is not None, max(0.0, until - time.monotonic()))
        status = self._status()
        self._incarnation = status.incarnation
        self._left = chosen(status, options.agents, options.host)
        for number in self._left:
            self._link.send(Drain(number, 0))

    def follow(self, options: DrainOptions, until: float) -> int:
        """Say of each agent what becomes of it; returns the exit code."""
        code = 0
        while self._left and time.monotonic() < until:
            self._turn()
            for number, text, is_well in self._news(waits=options.wait):
                print(text, flush=True)
                code = code if is_well else 1
                del self._left[number]
        for name in self._left.values():
            print(f"{name} is still there after {options.timeout_seconds:g} s")
        return 1 if self._left else code

    def _news(self, *, waits: bool) -> list[tuple[int, str, bool]]:
        """Number, text and whether it is well, of each agent of which there is nothing more to await."""
        status, news = self._status(), []
        draining = dict(zip(status.agents, status.agent_draining, strict=True))
        for number, name in self._left.items():
            if number not in draining:
                if status.uptime > self._missing.setdefault(number, status.uptime):
                    news.append((number, *_ending(name, self._listening.model.events)))
            elif draining[number] and not waits:
                news.append((number, f"{name} drains", True))
        return news

    def _turn(self) -> None:
        """Process what has arrived, after at most a moment; raises NotDrainedError if the scheduler is another one."""
        self._link.turn()
        self._listening.step()
        if self._incarnation and (self._link.joins > 1 or self._status().incarnation != self._incarnation):
            raise NotDrainedError(
                f"the scheduler at {self._address} was started again; see `scaler status`, and drain again"
            )

    def _status(self) -> MonitorStatus:
        assert self._listening.model.status is not None
        return self._listening.model.status


def _ending(name: str, events: Iterable[MonitorEvent]) -> tuple[str, bool]:
    """How an agent has gone, and whether it is well: objects that it has not handed over may be lost."""
    ending, is_well = f"{name} has left", True
    lost, left = f"agent {name} is gone: ", f"agent {name} has left "
    for event in events:
        if event.level >= logging.WARNING and event.text.startswith(lost):
            ending, is_well = f"{name} was lost: {event.text.removeprefix(lost)}", False
        elif event.level >= logging.WARNING and event.text.startswith(left):
            ending, is_well = f"{event.text.removeprefix('agent ')}. {_LEFT}", False
    return ending, is_well
