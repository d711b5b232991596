"""RelayCore: leases tasks from a scheduler for the agents behind it, and joins what these report. Pure.

To its agents a relay is a scheduler: a SchedulerCore decides which agent runs what, repeats what is lost with a host,
and runs the tasks that tasks submit. To the scheduler above it is one agent with the workers of all, which has one run
for each leased task. Its agents know other run ids, which begin with the incarnation of the relay; the scheduler knows
that, and so an agent that comes to it, or to another relay of it, goes on with its runs. The relay itself keeps nothing
that its agents do not: whoever is lost, the others report what they have.

    scheduler ──Run──▶ Submit ─▶ SchedulerCore ──Run──▶ agent     Release, Withdraw, Recall and Resend likewise
              ◀─Done── joined ◀───────────────── ◀─Done──         Reconcile of an agent that had another scheduler
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from scaler_io.links.effects import Effect, Send
from scaler_io.links.events import HubEvent, LinkLost, LinkRefused, LinkUp, PeerJoined, PeerLost
from scaler_protocol.capacity import ListProcesses, ProcessList
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Refused, Role, Welcome
from scaler_protocol.ids import is_nested, is_run_of, session_of
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import DEATHS, WORKERS, last_deaths
from scaler_protocol.messages import (
    MESSAGE_IDS,
    AgentStatus,
    Blocked,
    Cancel,
    Done,
    Functions,
    Message,
    NeedFunctions,
    NeedInputs,
    NeedTasks,
    Output,
    Recall,
    Reconcile,
    Release,
    Resend,
    Returned,
    Run,
    Shutdown,
    Status,
    Withdraw,
)
from scaler_protocol.monitoring import EventKind
from scaler_protocol.operations import Drain, ProfilePart, Resized, TakeProfile
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE
from scaler_protocol.storage import DeleteObjects
from scaler_scheduler.core.checks import check_done
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.core.outcome_batch import OutcomeBatch
from scaler_scheduler.core.permissions import PERMITTED as SCHEDULER_PERMITS
from scaler_scheduler.core.records import TaskBlock
from scaler_scheduler.core.reports import deaths_of
from scaler_scheduler.core.state import SendToStorage
from scaler_scheduler.core.task_states import ASSIGNED, DONE, HELD, WAITING
from scaler_scheduler.relay.absent_clients import AbsentClients, is_absent
from scaler_scheduler.relay.earlier_outcomes import EarlierOutcomes
from scaler_scheduler.relay.leases import Leases
from scaler_scheduler.relay.translation import JoinedProfile, joined_status, submits_of
from scaler_scheduler.requirements import describe_runtime, runtime_of

PERMITTED: Final = {Role.AGENT: SCHEDULER_PERMITS[Role.AGENT]}
"""Messages that peers may send to a relay; all are agents."""
JOIN_SECONDS: Final = 0.01
"""After outcomes were sent to the scheduler, further ones are collected for so long, if any can come."""


@dataclass(frozen=True, slots=True)
class SendUp:
    """Effect: send a message to the scheduler above."""

    message: Message


@dataclass(frozen=True, slots=True)
class ReconnectAgents:
    """Effect: agents must connect again, to be told of another scheduler."""


@dataclass(frozen=True, slots=True)
class EndRelay:
    """Effect: the relay must end. `failed`: not because somebody wants that."""

    reason: str
    failed: bool


RelayEffect = Effect | SendToStorage | WriteDump | SendUp | ReconnectAgents | EndRelay


class RelayCore:
    """All of a relay but its sockets: `handle` takes in what agents send, `hear` what the scheduler above sends."""

    def __init__(self, hello: Hello, scheduler: str, config: SchedulerConfig, fallback: str = "") -> None:
        """`hello` is what the relay tells the scheduler at the address `scheduler`; its agents offer the same.

        `fallback` is where agents reach the scheduler, if not there.
        """
        self.is_connected = False
        """Whether the scheduler has been reached: until then there is nothing that agents could be told."""
        self._hello, self._scheduler, self._fallback = hello, scheduler, fallback or scheduler
        self._core = SchedulerCore(hello.incarnation, replace(config, max_session_bytes=sys.maxsize))
        self._state = self._core.state
        self.leases, self.earlier = Leases(), EarlierOutcomes()
        self._clients = AbsentClients(self._core, self.leases, hello)
        self._storage, self._incarnation = "", 0
        """What the scheduler has told: where object storage is, and which incarnation it is."""
        self._out: list[RelayEffect] = []
        self._outcomes = OutcomeBatch()
        """Outcomes to be sent, by the agent that they name: values name the relay."""
        self._outcomes_at = 0.0
        self._wanted_back = 0
        """How many tasks that its agents have the scheduler has last asked for."""
        self._deaths: list[tuple[str, str]] = []
        """Deaths of workers that the scheduler was not told of: what has happened, and the host."""
        self._workers = 0
        self._is_draining = False
        self._newcomers: set[bytes] = set()
        """Agents that had another scheduler before, and have not reported what they have of it."""
        self._profile: JoinedProfile | None = None
        self._handlers = self._agent_handlers()
        self._from_above = self._scheduler_handlers()
        self._to_clients = self._client_handlers()

    def _agent_handlers(self) -> dict[type[Any], Callable[[bytes, Any, float], None]]:
        return {
            PeerJoined: self._joined,
            PeerLost: self._lost,
            Blocked: self._blocked,
            Output: self._output,
            Reconcile: self._agent_resumes,
            Done: self._done,
            AgentStatus: self._reported,
            Returned: self._returned,
        }

    def _scheduler_handlers(self) -> dict[type[Any], Callable[[Any, float], None]]:
        return {
            LinkUp: self._link_up,
            LinkLost: lambda event, now: self._end(f"no scheduler at {self._scheduler}: {event.reason}"),
            LinkRefused: self._refused,
            Run: self._run,
            Withdraw: self._withdraw,
            Recall: self._recall,
            Release: self._release,
            Resend: self._resend,
            Functions: self._clients.ask,
            Drain: self._drain,
            ListProcesses: self._clients.ask,
            TakeProfile: self._take_profile,
            Shutdown: self._shut_down,
        }

    def _client_handlers(self) -> dict[type[Any], Callable[[Any, float], None]]:
        return {
            Done: self._ended,
            NeedFunctions: lambda message, now: self._up(NeedFunctions(message.functions)),
            NeedInputs: self._inputs_lacking,
            NeedTasks: self._calls_lacking,
            Output: lambda message, now: self._up(message),
            DeleteObjects: lambda message, now: self._up(message),
            ProcessList: lambda message, now: self._up(message),
            ProfilePart: self._profile_part,
        }

    # --- agents -----------------------------------------------------------------------------------------------------

    def admit(self, hello: Hello) -> Welcome | Refused:
        """Decide whether a peer may connect; a refusal lists every reason."""
        if hello.role != Role.AGENT:
            return Refused([f"this is a relay, which takes agents only: connect to the scheduler at {self._fallback}"])
        reasons = []
        if is_absent(hello.identity):
            reasons.append("an identity is random, and this one is not")
        if hello.manager:
            reasons.append("the scheduler counts the units of worker managers, and does not see them behind a relay")
        if hello.consumable_names:
            names = ", ".join(hello.consumable_names)
            reasons.append(f"a relay does not count quantities, and this agent has some of {names}")
        if (theirs := _offered(hello)) != (ours := _offered(self._hello)):
            reasons.append(f"the hosts of a relay are alike: this agent offers {theirs}, the relay {ours}")
        if reasons:
            elsewhere = ", or to a relay of such hosts" if len(reasons) == 1 and theirs != ours else ""
            reasons.append(f"connect the agent to the scheduler at {self._fallback}{elsewhere}")
            return Refused(reasons)
        answer = self._core.admit(hello)
        if isinstance(answer, Welcome):
            answer = replace(
                answer,
                storage_address=self._storage,
                fallback_address=self._fallback,
                scheduler_incarnation=self._incarnation,
            )
        return answer

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Handle an event of an agent. Raises ProtocolError, without any change, for what it may not send."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(peer, event, now)
        else:
            self._core.handle(peer, event, now)
        if isinstance(event, PeerJoined | PeerLost | Resized):
            self._count_workers()

    def _joined(self, peer: bytes, event: PeerJoined, now: float) -> None:
        if event.hello.peer_incarnation not in (0, self._hello.incarnation) and not event.resumed:
            self._newcomers.add(peer)
        self._core.handle(peer, event, now)
        if self._is_draining:
            self._state.drain(self._state.agents[peer])

    def _lost(self, peer: bytes, event: PeerLost, now: float) -> None:
        self._newcomers.discard(peer)
        self._core.handle(peer, event, now)
        self.earlier.agent_left(peer)

    def _reported(self, peer: bytes, event: AgentStatus, now: float) -> None:
        self._core.handle(peer, event, now)
        agent = self._state.agents[peer]
        self._deaths += deaths_of(agent, event)
        del self._deaths[:-DEATHS]

    def _count_workers(self) -> None:
        workers = min(WORKERS.most, sum(agent.workers for agent in self._state.agents.values()))
        if workers != self._workers:
            self._workers = workers
            self._up(Resized(workers))

    def _blocked(self, peer: bytes, event: Blocked, now: float) -> None:
        self._core.handle(peer, event, now)
        rows = [(self._run_above(peer, run), blocked) for run, blocked in zip(event.runs, event.blocked, strict=True)]
        if leased := [(run, blocked) for run, blocked in rows if run is not None]:
            self._up(Blocked(*zip(*leased, strict=True)))

    def _run_above(self, peer: bytes, run: int) -> int | None:
        """The scheduler's run of the task of an agent's run; None if the task is not leased."""
        agent = self._state.agents.get(peer)
        task = agent.runs.get(run) if agent is not None else None
        return self.leases.runs.get(task.id) if task is not None else None

    def _output(self, peer: bytes, event: Output, now: float) -> None:
        """Pass on what leased tasks of this agent have written; this core takes what their own tasks have."""
        records = map(self._state.find, event.tasks)
        own = [record is not None and record.agent is self._state.agents.get(peer) for record in records]
        leased = [at for at, task in enumerate(event.tasks) if own[at] and task in self.leases.runs]
        others = sorted({*range(len(event.tasks))}.difference(leased))
        for positions, is_leased in ((leased, True), (others, False)):
            if positions:
                part = Output(
                    [event.tasks[at] for at in positions],
                    [event.streams[at] for at in positions],
                    Payloads([event.texts[at] for at in positions]),
                )
                self._up(part) if is_leased else self._core.handle(peer, part, now)

    def _agent_resumes(self, peer: bytes, event: Reconcile, now: float) -> None:
        """Claim what an agent has of another relay or scheduler, which told it to run that."""
        claims = self._claims(event, now)
        for session, tasks in self.leases.by_session(claims).items():
            self._clients.say(session, Reconcile(wanted=tasks), now)
        finished: Sequence[int] = ()
        if peer in self._newcomers:
            finished = [task for task in event.finished if self._is_unknown(task)]
            self.earlier.keepers.update(dict.fromkeys(finished, peer))
            event = replace(event, finished=[task for task in event.finished if task not in self.earlier.keepers])
            if not event.more:
                self._newcomers.discard(peer)
        try:
            self._core.handle(peer, event, now)
        finally:
            for task in [task for task in claims if self._state.find(task) is None]:
                self.leases.end(task)  # the agent has said more than it may, and is told to stop
                del claims[task]
        self._reconcile(list(claims.items()), finished)

    def _claims(self, event: Reconcile, now: float) -> dict[int, int]:
        """Lease those tasks of an agent, with their runs, that neither this relay nor its agents know."""
        claims: dict[int, int] = {}
        for task, run in zip(event.running, event.runs, strict=True):
            is_known = is_run_of(self._hello.incarnation, run) or self.leases.task_of(run) is not None
            if not is_known and self._is_unknown(task) and self._clients.may_claim(task):
                self._lease([task], [run], now)
                claims[task] = run
        return claims

    def _is_unknown(self, task: int) -> bool:
        """Whether the scheduler may want a task of which nothing is known here."""
        session = session_of(task)
        return session != 0 and not (is_nested(session) or task in self.leases.runs)

    def _done(self, peer: bytes, event: Done, now: float) -> None:
        check_done(event)
        if asked := self.earlier.answered(peer, event):
            unsent = self._outcomes.runs()
            self._outcomes.add_runs(event, {task: run for task, run in asked.items() if run not in unsent})
            event = _without(event, asked)
        if not event.tasks:
            return
        lost = self._lost_with_workers(peer, event) if Status.LOST in event.statuses else {}
        self._core.handle(peer, event, now)
        # The scheduler counts lost runs, wherever a task had them, and repeats it.
        if repeated := {task: run for task, run in lost.items() if self._is_queued(task)}:
            self._outcomes.add_runs(event, repeated)
            self._clients.end(repeated, Cancel, now)

    def _lost_with_workers(self, peer: bytes, report: Done) -> dict[int, int]:
        """The leased tasks whose runs this agent reports as lost, with the runs of the scheduler."""
        rows = zip(report.tasks, report.runs, report.statuses, strict=True)
        runs = {task: self._run_above(peer, run) for task, run, status in rows if status == Status.LOST}
        return {task: above for task, above in runs.items() if above is not None}

    # --- the scheduler above ----------------------------------------------------------------------------------------

    def hear(self, event: Any, now: float) -> None:
        """Handle an event of the link to the scheduler; unknown ones change nothing."""
        if handler := self._from_above.get(type(event)):
            handler(event, now)

    def _up(self, message: Message) -> None:
        self._out.append(SendUp(message))

    def _end(self, reason: str, *, failed: bool = True) -> None:
        self._out.append(EndRelay(reason, failed))

    def _refused(self, event: LinkRefused, now: float) -> None:
        self._end(f"the scheduler at {self._scheduler} refuses the relay: {'; '.join(event.reasons)}")

    def _link_up(self, event: LinkUp, now: float) -> None:
        first, self.is_connected = not self.is_connected, True
        welcome, before = event.welcome, (self._storage, self._incarnation)
        self._storage = welcome.storage_address
        self._incarnation = welcome.scheduler_incarnation or welcome.incarnation
        if not first and before != (self._storage, self._incarnation):
            self._out.append(ReconnectAgents())
        if event.resumed:
            return
        self._outcomes = OutcomeBatch()  # agents keep them
        self._up(Resized(self._workers))
        if not first:
            ended = [task for task in self.leases.runs if self._has_ended(task)]
            rows = [(task, run) for task, run in self.leases.runs.items() if not self._has_ended(task)]
            self._reconcile(rows, [*ended, *self.earlier.keepers], always=True)
            blocked = [
                run
                for agent in self._state.agents.values()
                for each in agent.blocked
                if (run := self._run_above(agent.peer, each)) is not None
            ]
            if blocked:
                self._up(Blocked(blocked, [True] * len(blocked)))

    def _reconcile(self, running: Sequence[tuple[int, int]], finished: Sequence[int], *, always: bool = False) -> None:
        last = max(len(running), len(finished)) - 1
        for at in range(0, max(last, 0 if always else -1) + 1, MESSAGE_IDS):
            rows, kept = running[at : at + MESSAGE_IDS], finished[at : at + MESSAGE_IDS]
            more = at + MESSAGE_IDS <= last
            self._up(Reconcile([task for task, _ in rows], [run for _, run in rows], finished=kept, more=more))

    def _waits(self, task: int) -> bool:
        entry = self._state.entry(task)
        return entry is not None and entry.state in (WAITING, HELD)

    def _is_queued(self, task: int) -> bool:
        entry = self._state.entry(task)
        return entry is not None and entry.state == WAITING

    def _has_ended(self, task: int) -> bool:
        entry = self._state.entry(task)
        return entry is not None and entry.state == DONE

    def _run(self, run: Run, now: float) -> None:
        # The scheduler has not taken the outcomes of earlier runs, and does not want them any more.
        self._clients.end([task for task in run.tasks if self._has_ended(task)], Release, now)
        self._lease(run.tasks, range(run.first_run, run.first_run + len(run.tasks)), now)
        for session, submit, inputs in submits_of(run):
            try:
                self._clients.say(session, submit, now)
                if inputs is not None:
                    self._clients.say(session, inputs, now)
            except ProtocolError:  # the session is still that of an agent that has just left
                self._give_back(submit.tasks, now)
        for task, attempt in zip(run.tasks, run.attempts, strict=False):
            if attempt > 1 and (record := self._state.find(task)) is not None:
                record.note().earlier_runs = attempt - 1

    def _lease(self, tasks: Sequence[int], runs: Sequence[int], now: float) -> None:
        self.leases.add(tasks, runs)
        self._clients.enter(tasks, now)
        self.earlier.leased(tasks)

    def _withdraw(self, message: Withdraw, now: float) -> None:
        tasks = [task for run in message.runs if (task := self.leases.task_of(run)) is not None]
        stopped = [task for task in tasks if not self._has_ended(task)]
        if stopped:
            count, runs = len(stopped), {task: self.leases.runs[task] for task in stopped}
            self._clients.end(stopped, Cancel, now)
            cancelled = Done(stopped, [Status.CANCELLED] * count, Payloads([b""] * count), profiles=NO_PROFILE * count)
            self._outcomes.add_runs(cancelled, runs)

    def _give_back(self, tasks: Iterable[int], now: float) -> None:
        """The scheduler must have these tasks run elsewhere, or again."""
        if runs := [run for task in tasks if (run := self.leases.runs.get(task)) is not None]:
            self._clients.end(tasks, Cancel, now)
            self._up(Returned(runs))

    def _recall(self, message: Recall, now: float) -> None:
        """Give back the newest tasks that no agent has, and if these are too few, later what agents return."""
        newest: list[int] = []
        for task in reversed(self.leases.runs):
            if len(newest) == message.count or not self._state.waiting.count:
                break
            if self._is_queued(task):
                newest.append(task)
        self._up(Returned([self.leases.runs[task] for task in newest]))
        self._clients.end(newest, Cancel, now)
        self._wanted_back = message.count - len(newest)
        if self._wanted_back:
            self._core.recall(self._wanted_back, now)

    def _returned(self, peer: bytes, event: Returned, now: float) -> None:
        """Give back what an agent returns, as far as the scheduler has last asked for more than could be given then."""
        agent = self._state.agents.get(peer)
        records = [agent.runs.get(run) for run in event.runs] if agent is not None else []
        self._core.handle(peer, event, now)
        leased = (record.id for record in records if record is not None and record.id in self.leases.runs)
        back = list(islice(filter(self._is_queued, leased), self._wanted_back))
        self._wanted_back -= len(back)
        self._give_back(back, now)

    def _release(self, message: Release, now: float) -> None:
        for keeper, tasks in self.earlier.released(message.tasks).items():
            self._state.send(keeper, Release(tasks))
        self._clients.end(message.tasks, Release, now)

    def _resend(self, message: Resend, now: float) -> None:
        """Ask the agents for outcomes that they keep."""
        asked: dict[bytes, list[int]] = {}
        for task in message.tasks:
            entry = self._state.entry(task)
            agent = entry.agent if entry is not None and not isinstance(entry, TaskBlock) else None
            keeper = self.earlier.keepers.get(task) or (agent.peer if agent is not None else b"")
            if keeper in self._state.agents and (task in self.earlier.keepers or self._has_ended(task)):
                asked.setdefault(keeper, []).append(task)
                self.earlier.ask(task, keeper, self.leases.runs.get(task, 0))
        for keeper, tasks in asked.items():
            self._state.send(keeper, Resend(tasks))

    def _drain(self, message: Drain, now: float) -> None:
        agents = list(self._state.agents.values())
        if not message.pid:
            self._is_draining = True
            for agent in agents:
                self._state.drain(agent)
            return
        found = [agent for agent in agents if agent.status is not None and message.pid in agent.status.pids]
        if len(found) == 1:
            self._state.send(found[0].peer, Drain(found[0].number, message.pid))
        else:
            hosts = ", ".join(agent.name or agent.host for agent in found) or "no host"
            text = f"not drained: process {message.pid} is a worker of {hosts}"
            self._state.log(text, EventKind.AGENT, logging.WARNING)

    def _take_profile(self, message: TakeProfile, now: float) -> None:
        self._profile = JoinedProfile(message)
        self._clients.ask(message, now)

    def _shut_down(self, message: Shutdown, now: float) -> None:
        for agent in self._state.agents:
            self._state.send(agent, message)
        self._end("the scheduler shuts the cluster down", failed=False)

    # --- one turn ---------------------------------------------------------------------------------------------------

    def note_busy(self, share: float) -> None:
        """The relay is busy for this share of its time."""
        self._core.note_busy(share)

    def settle(self, now: float) -> list[RelayEffect]:
        """Make every pending decision once; returns the effects to perform."""
        self._clients.settle(now)
        if not self._workers and self.leases.runs:
            self._give_back([task for task in self.leases.runs if self._waits(task)], now)
        self._settle_core(now)
        if self._outcomes and (now >= self._outcomes_at or not self._has_work()):
            self._outcomes_at = now + JOIN_SECONDS
            outcomes, self._outcomes = self._outcomes, OutcomeBatch()
            for message in outcomes.messages():
                self._up(message)
        if self._is_draining and not (self._state.agents or self.leases.runs or self._outcomes):
            self._end("all of its hosts were drained", failed=False)
        out, self._out = self._out, []
        return out

    def _has_work(self) -> bool:
        """Whether tasks have not ended, whose outcomes others can wait for."""
        return bool(self._state.waiting.count) or any(agent.runs for agent in self._state.agents.values())

    def _settle_core(self, now: float) -> None:
        """Have the core decide; what it sends to clients goes up."""
        while effects := self._core.settle(now):
            for effect in effects:
                if not (isinstance(effect, Send) and is_absent(effect.to)):
                    self._out.append(effect)
                elif to_client := self._to_clients.get(type(effect.message)):
                    to_client(effect.message, now)

    def due(self) -> float | None:
        """When `settle` must be called even if no event arrives."""
        times = [self._clients.due(), self._core.due(), self._outcomes_at if self._outcomes else None]
        return min(time for time in times if time is not None)

    def status(self) -> AgentStatus:
        """The state of all agents, to be reported to the scheduler; its deaths are those since the last call."""
        status = joined_status(self._state.agents.values(), self._state.waiting.count, self.leases.runs)
        deaths, self._deaths = self._deaths, []
        texts = last_deaths([text for text, _ in deaths])
        return replace(status, deaths=texts, death_hosts=[host for _, host in deaths])

    def _ended(self, message: Done, now: float) -> None:
        self._outcomes.add_runs(message, self.leases.runs)

    def _inputs_lacking(self, message: NeedInputs, now: float) -> None:
        """Inputs come with the tasks that need them: those that still lack some are given back."""
        records = (self._state.find(task) for task in dict.fromkeys(message.tasks))
        lacking = [record.id for record in records if record is not None and record.state == HELD]
        if lacking:
            self._give_back(lacking, now)

    def _calls_lacking(self, message: NeedTasks, now: float) -> None:
        """Calls of claimed tasks are known to the scheduler only: those that no agent runs any more are given back."""
        records = (self._state.find(task) for task in message.tasks)
        lacking = [record.id for record in records if record is not None and record.state != ASSIGNED]
        if lacking:
            self._give_back(lacking, now)

    def _profile_part(self, part: ProfilePart, now: float) -> None:
        if self._profile is not None and (joined := self._profile.add(part)) is not None:
            self._profile = None
            self._up(joined)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        self._core.check()
        self.leases.check()
        assert self.earlier.keepers.keys().isdisjoint(self.leases.runs)
        for task in self.leases.runs:
            assert self._state.entry(task) is not None, f"task {task:x} is leased, and not known"
        self._clients.check()


def _offered(hello: Hello) -> str:
    """What an agent offers to tasks, as text."""
    pairs = sorted(zip(hello.capability_names, hello.capability_values, strict=True))
    offered = ", ".join(name if value < 0 else f"{name}={value}" for name, value in pairs)
    return f"{offered or 'no capabilities'} and {describe_runtime(runtime_of(hello))}"


def _without(report: Done, tasks: Iterable[int]) -> Done:
    """The report without the outcomes of these tasks."""
    gone = set(tasks)
    left = [at for at, task in enumerate(report.tasks) if task not in gone]
    rest = OutcomeBatch()
    rest.add_runs(report, {report.tasks[at]: report.runs[at] for at in left})
    return next(rest.messages(), Done((), (), Payloads([])))
