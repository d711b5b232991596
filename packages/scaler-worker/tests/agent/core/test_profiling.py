"""The profile of a host: what its workers have sampled, added up within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from scaler_io.links.events import LinkUp
from scaler_protocol.codec import encode
from scaler_protocol.handshake import Welcome
from scaler_protocol.limits import STACKS
from scaler_protocol.operations import ProfilePart, TakeProfile
from scaler_protocol.stack_counts import OTHERS
from scaler_worker.agent.core import events
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.core.events import SCHEDULER
from scaler_worker.agent.core.profiling import PATIENCE_SECONDS, SAMPLED_BYTES
from scaler_worker.agent.core.records import AgentConfig
from scaler_worker.ipc.frames import SamplesTaken, WorkerReady

ASKED = TakeProfile(5, "", 2.0, 4096)
UNTIL = 102_000_000_000


class ProfiledHost:
    """A core with ready workers; time stands still unless told."""

    def __init__(self, workers: int = 2) -> None:
        self.core = AgentCore(AgentConfig(workers, "agent", "host"))
        self.now = 100.0
        self.effects: list[Any] = []
        self.feed(SCHEDULER, LinkUp(Welcome(1), False))
        for worker in range(workers):
            self.feed(worker, WorkerReady(1000 + worker))

    def feed(self, peer: int, *happened: Any) -> None:
        for event in happened:
            self.core.handle(peer, event, self.now)
        self.effects += self.core.settle(self.now)
        self.core.check()

    def asked(self) -> list[events.TakeSamples]:
        return [effect for effect in self.effects if isinstance(effect, events.TakeSamples)]

    def answers(self) -> list[ProfilePart]:
        sent = [effect.message for effect in self.effects if isinstance(effect, events.SendToScheduler)]
        found = [message for message in sent if isinstance(message, ProfilePart)]
        for message in found:
            encode(message)
        return found


@pytest.fixture
def host() -> ProfiledHost:
    return ProfiledHost()


def test_samples_of_all_workers_are_added_up(host: ProfiledHost) -> None:
    host.feed(SCHEDULER, ASKED)
    assert host.asked() == [events.TakeSamples(0, UNTIL), events.TakeSamples(1, UNTIL)]
    host.feed(0, SamplesTaken(UNTIL, False, b"3 f;a\n2 f"), SamplesTaken(UNTIL, True, b";b\n"))
    assert host.answers() == []
    host.feed(1, SamplesTaken(UNTIL, True, b"4 f;a\n"))
    assert host.answers() == [ProfilePart(5, ["f;a", "f;b"], [7, 2], 2)]
    host.feed(1, SamplesTaken(UNTIL, True, b"4 f;a\n"))
    host.now += 100
    host.feed(SCHEDULER)
    assert len(host.answers()) == 1, "it is over"


def test_only_the_function_that_is_asked_for_counts(host: ProfiledHost) -> None:
    host.feed(SCHEDULER, TakeProfile(5, "odd;name", 2.0, 4096))
    host.feed(0, SamplesTaken(UNTIL, True, b"3 odd:name;a\n9 other;odd:name\n"))
    host.feed(1, SamplesTaken(UNTIL, True, b""))
    assert host.answers() == [ProfilePart(5, ["odd:name;a"], [3], 2)]


def test_a_worker_that_dies_or_is_silent_is_left_out(host: ProfiledHost) -> None:
    host.feed(SCHEDULER, ASKED)
    host.feed(0, SamplesTaken(UNTIL, True, b"3 f\n"))
    host.feed(1, SamplesTaken(UNTIL, False, b"8 half"), events.WorkerDied("killed by SIGKILL", 0))
    assert host.answers() == [ProfilePart(5, ["f"], [3], 1)]
    silent = ProfiledHost()
    silent.feed(SCHEDULER, ASKED)
    silent.now += 2 + PATIENCE_SECONDS - 0.1
    silent.feed(SCHEDULER)
    assert silent.answers() == [] and silent.core.due() <= silent.now + 0.2
    silent.now += 0.2
    silent.feed(SCHEDULER)
    assert silent.answers() == [ProfilePart(5, [], [])]


def test_a_new_profile_replaces_the_old_one(host: ProfiledHost) -> None:
    host.feed(SCHEDULER, ASKED)
    host.now += 1
    host.feed(SCHEDULER, TakeProfile(6, "", 2.0, 4096))
    until = UNTIL + 10**9
    host.feed(0, SamplesTaken(UNTIL, True, b"1 old\n"), SamplesTaken(until, True, b"1 new\n"))
    host.feed(1, SamplesTaken(until, True, b"1 new\n"))
    assert host.answers() == [ProfilePart(6, ["new"], [2], 2)]


def test_whatever_a_task_has_written_the_answer_is_bounded_and_sound(host: ProfiledHost) -> None:
    host.feed(SCHEDULER, ASKED)
    garbage = b"\xff\xfe x\n-1 f\n99999999999999 f\n1\n \n1 \x1b[31m;\x00\n2 " + b"y" * 20_000 + b"\n"
    host.feed(0, SamplesTaken(UNTIL, True, garbage))
    many = b"".join(b"1 f;%d\n" % each for each in range(50_000))
    host.feed(1, *(SamplesTaken(UNTIL, False, many[at : at + 4000]) for at in range(0, len(many), 4000)))
    host.feed(1, SamplesTaken(UNTIL, True, b""))
    [part] = host.answers()
    assert part.workers == 2 and len(part.stacks) <= STACKS
    assert sum(len(stack.encode()) for stack in part.stacks) <= ASKED.limit + len(OTHERS)
    counts = dict(zip(part.stacks, part.counts, strict=True))
    assert counts[OTHERS] > 10_000 and sum(counts.values()) <= SAMPLED_BYTES


def test_another_scheduler_is_sent_no_answer(host: ProfiledHost) -> None:
    host.feed(SCHEDULER, ASKED)
    host.feed(SCHEDULER, LinkUp(Welcome(2), False))
    host.feed(0, SamplesTaken(UNTIL, True, b"1 f\n"))
    host.now += 100
    host.feed(SCHEDULER)
    assert host.answers() == []
