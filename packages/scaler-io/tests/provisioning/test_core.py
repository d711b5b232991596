"""A manager's core against a provider in memory: it has as many units as are wanted, and leaves none behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scaler_io.links.effects import Log
from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_io.provisioning.core import EARLY_SECONDS, JOIN_SECONDS, RECONNECT_SECONDS, ManagerConfig, ManagerCore
from scaler_io.provisioning.events import (
    EndManager,
    ListUnits,
    SendStatus,
    StartUnits,
    StopRequested,
    StopUnits,
    UnitsListed,
    UnitsStarted,
    UnitsStopped,
)
from scaler_io.provisioning.provisioner import OfferSpec, UnitPhase, UnitReport
from scaler_protocol.capacity import DesiredWorkers, ManagerStatus, UnitState
from scaler_protocol.codec import encode
from scaler_protocol.handshake import Welcome
from support.examples import examples

OFFERS = (OfferSpec("", "3.11.7", "3.1.2", 2),)


class Provider:
    """Performs a core's effects in memory."""

    def __init__(self, maximum: int = -1, offers: Sequence[OfferSpec] = OFFERS, **config: Any) -> None:
        self.now = 100.0
        self.core = ManagerCore(
            ManagerConfig(
                id="grid",
                kind="test",
                maximum=maximum,
                offers=tuple(offers),
                prefix="grid-a",
                poll_seconds=1.0,
                **config,
            ),
            self.now,
        )
        self.units: dict[str, UnitReport] = {}
        self.status: ManagerStatus | None = None
        self.logs: list[str] = []
        self.stopped: list[tuple[str, bool]] = []
        self.refusal = ""
        self.obeys = True
        self.code: int | None = None

    def handle(self, *events: Any) -> None:
        for event in events:
            self.core.handle(event, self.now)
        self.settle()

    def settle(self) -> None:
        while effects := self.core.settle(self.now):
            for effect in effects:
                self.perform(effect)
            self.core.check()
            if self.code is not None:
                return

    def perform(self, effect: Any) -> None:
        if isinstance(effect, StartUnits):
            accepted = () if self.refusal else effect.units
            self.units.update((name, UnitReport(UnitPhase.STARTING, "", effect.offer)) for name in accepted)
            self.core.handle(UnitsStarted(effect.units, accepted, self.refusal), self.now)
        elif isinstance(effect, StopUnits):
            self.stopped += [(name, effect.force) for name in effect.units]
            if self.obeys or effect.force:
                for name in effect.units:
                    self.units.pop(name, None)
            self.core.handle(UnitsStopped(), self.now)
        elif isinstance(effect, ListUnits):
            self.core.handle(UnitsListed(dict(self.units), self.now), self.now)
        elif isinstance(effect, SendStatus):
            self.status = effect.status
        elif isinstance(effect, EndManager):
            self.code = effect.code
        else:
            assert isinstance(effect, Log)
            self.logs.append(effect.text)

    def later(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end and self.code is None:
            self.now = min(end, max(self.now + 0.1, self.core.due()))
            self.settle()

    def link(self, *, resumed: bool = False) -> None:
        self.handle(LinkUp(Welcome(1), resumed))

    def want(self, *workers: int, **units: int) -> None:
        self.handle(DesiredWorkers(workers, "the test wants it", list(units), list(units.values())))

    def run_all(self) -> None:
        self.units = {name: UnitReport(UnitPhase.RUNNING, "", unit.offer) for name, unit in self.units.items()}
        self.later(1.1)

    def join_all(self, state: int = UnitState.JOINED) -> None:
        self.handle(DesiredWorkers((len(self.units) * 2,), "", list(self.units), [state] * len(self.units)))


@pytest.fixture
def provider() -> Provider:
    made = Provider()
    made.settle()
    made.link()
    return made


def test_units_are_started_until_there_are_as_many_workers_as_wanted(provider: Provider) -> None:
    provider.want(6)
    assert list(provider.units) == ["grid-a-1", "grid-a-2", "grid-a-3"]
    provider.run_all()
    assert provider.status is not None
    assert provider.status.pending_units == ("grid-a-1", "grid-a-2", "grid-a-3")
    provider.join_all()
    provider.later(60.0)
    assert len(provider.units) == 3 and not provider.status.pending_units
    assert provider.status.startup_seconds == pytest.approx(1.1, abs=0.2)


def test_nothing_is_started_without_link_or_before_the_first_listing() -> None:
    provider = Provider()
    provider.core.handle(LinkUp(Welcome(1), False), provider.now)
    provider.core.handle(DesiredWorkers((4,)), provider.now)
    assert not any(isinstance(effect, StartUnits) for effect in provider.core.settle(provider.now))
    provider.handle(LinkDown("cut"), UnitsListed({}, provider.now))
    assert provider.units == {}
    provider.link(resumed=True)
    assert len(provider.units) == 2


def test_units_that_have_not_joined_are_cancelled_the_youngest_first(provider: Provider) -> None:
    provider.want(2)
    provider.later(1.0)
    provider.want(6)
    provider.want(2)
    assert list(provider.units) == ["grid-a-1"]
    assert [name for name, _ in provider.stopped] == ["grid-a-3", "grid-a-2"] or len(provider.stopped) == 2


def test_units_that_have_joined_are_never_stopped_by_a_smaller_total(provider: Provider) -> None:
    provider.want(4)
    provider.run_all()
    provider.join_all()
    provider.want(0)
    provider.later(600.0)
    assert len(provider.units) == 2 and provider.stopped == []


def test_a_draining_unit_is_replaced_and_stopped_when_its_time_is_over(provider: Provider) -> None:
    provider.want(2)
    provider.run_all()
    provider.want(2, **{"grid-a-1": UnitState.JOINED})
    provider.want(2, **{"grid-a-1": UnitState.DRAINING})
    assert list(provider.units) == ["grid-a-1", "grid-a-2"]
    provider.later(54.0)
    assert provider.stopped == []
    provider.later(2.0)
    assert provider.stopped == [("grid-a-1", False)]


def test_a_unit_that_does_not_obey_is_stopped_by_force(provider: Provider) -> None:
    provider.obeys = False
    provider.want(2)
    provider.run_all()
    provider.want(0)
    provider.later(120.0)
    assert provider.stopped == [("grid-a-1", False), ("grid-a-1", True)] and not provider.units


def test_a_unit_that_ends_on_its_own_is_replaced(provider: Provider) -> None:
    provider.want(2)
    provider.run_all()
    provider.join_all()
    provider.later(EARLY_SECONDS + 1.0)
    provider.want(2, **{"grid-a-1": UnitState.GONE})
    del provider.units["grid-a-1"]
    provider.later(2.0)
    assert list(provider.units) == ["grid-a-2"]
    assert provider.status is not None and provider.status.failure == ""


def test_units_that_end_soon_after_they_have_joined_back_off_with_the_reason(provider: Provider) -> None:
    provider.want(2)
    for _ in range(200):
        for name in list(provider.units):
            provider.want(2, **{name: UnitState.JOINED})
            provider.later(0.3)
            provider.want(2, **{name: UnitState.GONE})
            provider.units[name] = UnitReport(UnitPhase.ENDED, "exit code 1: no module named preload")
            provider.later(1.1)
            del provider.units[name]
        provider.later(1.0)
    assert provider.status is not None and provider.status.paused_seconds > 30
    assert "0 s after it had connected to the scheduler: exit code 1: no module" in provider.status.failure
    pauses = [text.rpartition("nothing is started for ")[2] for text in provider.logs if "nothing is started" in text]
    assert pauses[:8] == ["1 s", "2 s", "4 s", "8 s", "16 s", "32 s", "60 s", "60 s"] and len(pauses) < 15


def test_a_unit_that_was_drained_at_once_has_not_failed(provider: Provider) -> None:
    provider.want(2)
    provider.run_all()
    provider.join_all()
    name = "grid-a-1"
    provider.handle(DesiredWorkers((2,), "", [name, name], [UnitState.DRAINING, UnitState.GONE]))
    provider.units[name] = UnitReport(UnitPhase.ENDED, "exit code 0")
    provider.later(1.1)
    assert provider.status is not None and (provider.status.failure, provider.status.paused_seconds) == ("", 0)


def test_a_unit_that_stays_ends_a_series_of_failures(provider: Provider) -> None:
    provider.refusal = "no quota"
    provider.want(2)
    provider.later(20.0)
    provider.refusal = ""
    provider.later(20.0)
    provider.join_all()
    provider.later(EARLY_SECONDS + 1.0)
    provider.refusal = "no quota"
    provider.logs.clear()
    provider.want(4)
    assert "nothing is started for 1 s" in provider.logs[-1]


def test_a_unit_whose_agent_has_left_and_that_stays_is_stopped(provider: Provider) -> None:
    provider.want(2)
    provider.run_all()
    provider.join_all()
    provider.want(2, **{"grid-a-1": UnitState.GONE})
    provider.later(32.0)
    assert ("grid-a-1", False) in provider.stopped


@pytest.mark.parametrize("reason", ["x" * 100_000, "no \udce9 text"])
def test_whatever_a_provider_says_can_be_reported(provider: Provider, reason: str) -> None:
    provider.refusal = reason
    provider.want(4)
    assert provider.status is not None and "could not be started" in provider.status.failure
    encode(provider.status)
    assert all(len(text.encode()) < 10_000 for text in provider.logs)


def test_refused_starts_back_off_and_are_reported(provider: Provider) -> None:
    provider.refusal = "no quota"
    provider.want(4)
    assert provider.status is not None and "2 of 2 units could not be started: no quota" in provider.status.failure
    provider.settle()
    assert provider.status.paused_seconds > 0
    provider.later(200.0)
    assert sum("could not be started" in text for text in provider.logs) == pytest.approx(9, abs=1)
    provider.refusal = ""
    provider.later(61.0)
    provider.run_all()
    provider.join_all()
    provider.later(3.0)
    assert provider.status.failure == "" and provider.status.paused_seconds == 0


def test_units_that_end_before_they_join_back_off(provider: Provider) -> None:
    provider.want(2)
    provider.units = {"grid-a-1": UnitReport(UnitPhase.ENDED, "exit code 7: no module named scaler")}
    provider.later(1.5)
    assert provider.status is not None and "exit code 7: no module named scaler" in provider.status.failure
    started = len(provider.units)
    provider.later(60.0)
    assert len(provider.units) > started, "it tries again"


def test_units_that_their_provider_takes_back_are_replaced_at_once(provider: Provider) -> None:
    provider.want(4)
    provider.units["grid-a-1"] = UnitReport(UnitPhase.RECLAIMED, "preempted")
    provider.later(1.5)
    assert provider.units.keys() == {"grid-a-1", "grid-a-2", "grid-a-3"}
    assert provider.status is not None and (provider.status.failure, provider.status.paused_seconds) == ("", 0)
    assert "unit grid-a-1 was reclaimed by its provider: preempted" in provider.logs[-1]


def test_a_start_may_be_accepted_in_part(provider: Provider) -> None:
    provider.want(4)
    provider.units.clear()
    provider.handle(UnitsStarted(("grid-a-1", "grid-a-2"), ("grid-a-1",), "no quota"))
    assert provider.status is not None and "1 of 2 units could not be started: no quota" in provider.status.failure


def test_units_that_cannot_start_say_why_and_are_stopped_in_the_end(provider: Provider) -> None:
    provider.want(2)
    provider.units["grid-a-1"] = UnitReport(UnitPhase.STARTING, "no such image")
    provider.later(1.5)
    assert provider.status is not None and provider.status.failure == "unit grid-a-1 waits: no such image"
    assert provider.logs.count("worker manager grid: unit grid-a-1 waits: no such image") == 1
    assert (provider.status.pending_units, provider.status.paused_seconds) == (("grid-a-1",), 0), "it may still start"
    provider.later(JOIN_SECONDS)
    assert provider.stopped == [("grid-a-1", False)]
    assert provider.status.failure == f"unit grid-a-1 has not started for {JOIN_SECONDS:g} s: no such image"
    assert provider.status.paused_seconds > 0


def test_units_that_wait_for_their_turn_are_left_alone(provider: Provider) -> None:
    provider.want(2)
    provider.later(JOIN_SECONDS * 10)
    assert provider.stopped == [] and provider.units.keys() == {"grid-a-1"}


def test_a_start_that_worked_in_the_end_may_tell_what_did_not(provider: Provider) -> None:
    provider.want(2)
    provider.handle(UnitsStarted(("grid-a-1",), ("grid-a-1",), "host b is away"))
    assert provider.status is not None
    assert (provider.status.failure, provider.status.paused_seconds) == ("host b is away", 0)


def test_units_that_never_join_are_stopped(provider: Provider) -> None:
    provider.want(2)
    provider.run_all()
    provider.later(JOIN_SECONDS + 1.0)
    assert provider.stopped[0] == ("grid-a-1", False)
    assert provider.status is not None and "has not connected for 300 s" in " ".join(provider.logs)


def test_units_of_an_earlier_life_are_adopted() -> None:
    provider = Provider()
    provider.units = {"grid-0-7": UnitReport(UnitPhase.RUNNING), "grid-0-8": UnitReport(UnitPhase.ENDED)}
    provider.settle()
    provider.link()
    provider.want(4, **{"grid-0-7": UnitState.JOINED})
    assert provider.units.keys() == {"grid-0-7", "grid-0-8", "grid-a-1"}


def test_units_of_an_earlier_life_have_time_to_connect_before_they_are_cancelled(provider: Provider) -> None:
    provider.want(0)
    provider.units = {"grid-0-7": UnitReport(UnitPhase.RUNNING), "grid-0-8": UnitReport(UnitPhase.RUNNING)}
    provider.later(RECONNECT_SECONDS - 1)
    provider.want(0)
    assert provider.stopped == [], "their agents may be about to find the new scheduler"
    provider.want(0, **{"grid-0-7": UnitState.JOINED})
    provider.later(4.0)
    provider.want(0, **{"grid-0-7": UnitState.DRAINING})
    assert provider.stopped == [("grid-0-8", False)]


def test_a_listing_that_fails_changes_nothing(provider: Provider) -> None:
    provider.want(2)
    provider.handle(UnitsListed(None, provider.now, "the API is away"))
    assert provider.status is not None and "the API is away" in provider.status.failure
    assert len(provider.units) == 1


def test_others_are_asked_while_it_is_unknown_which_units_there_are() -> None:
    provider = Provider()
    listed = provider.perform
    provider.perform = lambda effect: None if isinstance(effect, ListUnits) else listed(effect)  # type: ignore[method-assign]
    provider.settle()
    provider.link()
    assert provider.status is not None and provider.status.paused_seconds == 0, "the listing is under way"
    for _ in range(3):
        provider.handle(UnitsListed(None, provider.now, "the API is away"))
        provider.want(2)
        assert provider.status.paused_seconds > 0 and "the API is away" in provider.status.failure
        provider.later(2.5)
        assert provider.status.paused_seconds > 0 and provider.units == {}
    provider.handle(UnitsListed({}, provider.now))
    provider.later(2.5)
    assert (provider.status.paused_seconds, provider.status.failure) == (0, "") and len(provider.units) == 1


class Blind(Provider):
    """Cannot be listed while `fault` says why."""

    fault = "the API is away"

    def perform(self, effect: Any) -> None:
        if isinstance(effect, ListUnits) and self.fault:
            self.core.handle(UnitsListed(None, self.now, self.fault), self.now)
        else:
            super().perform(effect)


def test_a_listing_that_fails_is_logged_once_and_forgotten_when_one_succeeds() -> None:
    blind = Blind()
    blind.settle()
    blind.link()
    blind.later(30.0)
    assert sum("the API is away" in text for text in blind.logs) == 1
    blind.fault = ""
    blind.want(2)
    blind.later(3.0)
    blind.fault = "the API is away again"
    blind.later(3.0)
    assert blind.status is not None and blind.fault in blind.status.failure and blind.status.paused_seconds == 0
    blind.fault = ""
    blind.later(3.0)
    assert blind.status.failure == ""


def test_a_manager_that_has_never_listed_its_units_ends_with_the_reason() -> None:
    blind = Blind()
    blind.settle()
    blind.handle(StopRequested())
    blind.later(3.0)
    assert blind.code == 1 and "the API is away" in blind.logs[-1] and "stay" in blind.logs[-1]


def test_what_a_refused_start_has_started_all_the_same_is_stopped_at_the_end(provider: Provider) -> None:
    provider.refusal = "no answer for 60 s"
    provider.want(2)
    provider.units = {"grid-a-1": UnitReport(UnitPhase.STARTING)}
    provider.handle(StopRequested())
    provider.later(2.0)
    assert provider.stopped == [("grid-a-1", False)] and provider.code == 0


def test_a_connected_unit_lives_whatever_a_listing_shows(provider: Provider) -> None:
    provider.want(2)
    provider.run_all()
    provider.join_all()
    units, provider.units = provider.units, {}
    provider.later(60.0)
    assert not provider.units, "it is not replaced"
    provider.units = units
    provider.later(400.0)
    assert len(provider.units) == 1 and not provider.stopped
    provider.units = {}
    provider.want(2, **{"grid-a-1": UnitState.GONE})
    provider.later(3.0)
    assert list(provider.units) == ["grid-a-2"]


def test_a_provider_may_list_what_it_accepted_late() -> None:
    provider = Provider(visible_seconds=30.0)
    provider.settle()
    provider.link()
    provider.want(2)
    units, provider.units = provider.units, {}
    provider.later(20.0)
    provider.units.update(units)
    provider.later(20.0)
    assert len(provider.units) == 1 and provider.status is not None and provider.status.failure == ""


def test_the_maximum_holds_also_while_units_drain() -> None:
    provider = Provider(maximum=4)
    provider.settle()
    provider.link()
    provider.want(4)
    provider.run_all()
    provider.join_all()
    provider.want(4, **{"grid-a-1": UnitState.DRAINING})
    assert len(provider.units) == 2
    del provider.units["grid-a-1"]
    provider.want(4, **{"grid-a-1": UnitState.GONE})
    provider.later(2.0)
    assert list(provider.units) == ["grid-a-2", "grid-a-3"]


def test_a_new_scheduler_is_told_every_unit_and_starts_none_twice(provider: Provider) -> None:
    provider.want(4)
    provider.run_all()
    provider.join_all()
    provider.handle(LinkDown("killed"))
    provider.link()
    assert provider.status is not None and len(provider.status.pending_units) == 2
    provider.want(4)
    provider.join_all()
    provider.later(10.0)
    assert len(provider.units) == 2


def test_a_unit_that_does_not_come_back_to_a_new_scheduler_is_replaced(provider: Provider) -> None:
    provider.want(4)
    provider.run_all()
    provider.join_all()
    provider.link()
    provider.want(4, **{"grid-a-1": UnitState.JOINED})
    provider.later(JOIN_SECONDS - 1.0)
    assert provider.stopped == []
    provider.later(5.0)
    assert provider.stopped == [("grid-a-2", False)] and provider.units.keys() == {"grid-a-1", "grid-a-3"}


def test_a_failure_counts_once_while_a_stop_is_under_way(provider: Provider) -> None:
    provider.want(2)
    provider.later(5.0)
    provider.want(4)
    obedient = provider.perform
    provider.perform = lambda effect: None if isinstance(effect, StopUnits) else obedient(effect)  # type: ignore[method-assign]
    provider.run_all()
    provider.units["grid-a-3"] = UnitReport(UnitPhase.RUNNING)  # of an earlier life
    provider.later(JOIN_SECONDS + 100.0)
    provider.handle(UnitsStopped())
    assert sum("nothing is started" in text for text in provider.logs) == 1


def test_a_manager_that_ends_offers_no_workers(provider: Provider) -> None:
    provider.obeys = False
    provider.want(2)
    assert provider.status is not None and provider.status.maximum == -1
    provider.handle(StopRequested())
    assert provider.status.maximum == 0


def test_the_manager_ends_when_its_units_have_ended(provider: Provider) -> None:
    provider.want(4)
    provider.handle(StopRequested())
    assert {name for name, _ in provider.stopped} == {"grid-a-1", "grid-a-2"}
    provider.later(2.0)
    assert provider.code == 0 and not provider.units


def test_units_have_time_to_hand_over_after_draining_when_the_manager_ends() -> None:
    provider = Provider(drain_timeout_seconds=5.0)
    provider.settle()
    provider.link()
    provider.obeys = False
    provider.want(2)
    provider.handle(StopRequested())
    provider.later(34.0)
    assert provider.stopped == [("grid-a-1", False)] and provider.code is None
    provider.later(3.0)
    assert provider.stopped[-1] == ("grid-a-1", True) and provider.code == 0


def test_a_second_request_stops_by_force(provider: Provider) -> None:
    provider.obeys = False
    provider.want(2)
    provider.handle(StopRequested())
    provider.later(1.0)
    provider.handle(StopRequested())
    provider.later(2.0)
    assert provider.stopped[-1] == ("grid-a-1", True) and provider.code == 0


class Denying(Provider):
    """A provider that refuses the next stops, so many of them."""

    denials = 10**6

    def perform(self, effect: Any) -> None:
        if isinstance(effect, StopUnits) and self.denials:
            self.denials -= 1
            self.stopped += [(name, effect.force) for name in effect.units]
            self.core.handle(UnitsStopped("denied"), self.now)
        else:
            super().perform(effect)


@pytest.fixture
def denying() -> Denying:
    made = Denying()
    made.settle()
    made.link()
    return made


def test_a_stop_that_fails_is_repeated(denying: Denying) -> None:
    denying.denials = 3
    denying.want(4)
    denying.want(2)
    assert denying.stopped == [("grid-a-1", False)]
    denying.later(5.0)
    assert denying.stopped == [("grid-a-1", False)] * 4 and denying.units.keys() == {"grid-a-2"}
    assert sum("could not be stopped: denied" in text for text in denying.logs) == 1


def test_a_stop_that_fails_at_the_end_of_the_manager_is_repeated(denying: Denying) -> None:
    denying.denials = 3
    denying.want(4)
    denying.handle(StopRequested())
    denying.later(5.0)
    assert denying.code == 0 and not denying.units and not any(force for _, force in denying.stopped)


def test_units_that_cannot_be_stopped_are_forced_and_then_named(denying: Denying) -> None:
    provider = denying
    provider.want(2)
    provider.handle(StopRequested())
    provider.later(120.0)
    assert provider.code == 1 and "grid-a-1" in provider.logs[-1] and provider.stopped[-1] == ("grid-a-1", True)


def test_units_may_stay_when_the_manager_ends() -> None:
    provider = Provider(leave_units=True)
    provider.settle()
    provider.link()
    provider.want(2)
    provider.handle(StopRequested())
    assert provider.code == 0 and len(provider.units) == 1


def test_a_lost_scheduler_ends_the_manager(provider: Provider) -> None:
    provider.want(2)
    provider.handle(LinkLost("no connection for 300 s"))
    provider.later(2.0)
    assert provider.code == 1 and not provider.units


REFUSED = LinkRefused(("worker manager 'grid' is connected already",))


def test_a_refused_manager_leaves_the_units_of_others() -> None:
    refused = Provider()
    refused.units = {"grid-b-1": UnitReport(UnitPhase.RUNNING)}
    refused.settle()
    refused.handle(REFUSED)
    assert refused.code == 1 and refused.units and refused.stopped == []


@pytest.mark.parametrize("is_ending", [False, True])
def test_a_refused_manager_stops_the_units_that_it_has_started(is_ending: bool) -> None:
    refused = Provider()
    refused.units = {"grid-b-1": UnitReport(UnitPhase.RUNNING)}
    refused.settle()
    refused.link()
    refused.want(6)
    refused.join_all()
    refused.obeys = False
    refused.handle(LinkDown("stopped for a while"), *[StopRequested(1)] * is_ending, REFUSED)
    assert refused.code is None and set(refused.stopped) == {("grid-a-1", False), ("grid-a-2", False)}
    del refused.units["grid-a-1"], refused.units["grid-a-2"]
    refused.later(2.0)
    assert refused.code == 1 and list(refused.units) == ["grid-b-1"]
    assert not any(force for _, force in refused.stopped)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, the invariants hold, and at the end nothing is left."""

    def __init__(self) -> None:
        super().__init__()
        self.provider = Provider(maximum=20)
        self.provider.link()

    @rule(workers=st.integers(0, 30))
    def want(self, workers: int) -> None:
        self.provider.want(workers)

    @rule(seconds=st.floats(0.1, 100.0))
    def later(self, seconds: float) -> None:
        self.provider.later(seconds)

    @rule(refusal=st.sampled_from(["", "no quota"]), obeys=st.booleans())
    def change(self, refusal: str, obeys: bool) -> None:
        self.provider.refusal, self.provider.obeys = refusal, obeys

    @rule(data=st.data(), state=st.sampled_from([UnitState.GONE, UnitState.JOINED, UnitState.DRAINING]))
    def move(self, data: st.DataObject, state: int) -> None:
        if self.provider.units:
            name = data.draw(st.sampled_from(sorted(self.provider.units)))
            self.provider.want(4, **{name: state})

    @rule(data=st.data(), phase=st.sampled_from(UnitPhase))
    def report(self, data: st.DataObject, phase: UnitPhase) -> None:
        if self.provider.units:
            name = data.draw(st.sampled_from(sorted(self.provider.units)))
            self.provider.units[name] = UnitReport(phase)

    @rule(resumed=st.booleans())
    def reconnect(self, resumed: bool) -> None:
        self.provider.handle(LinkDown("cut"))
        self.provider.link(resumed=resumed)

    @invariant()
    def holds(self) -> None:
        self.provider.core.check()
        assert self.provider.core.due() < math.inf

    def teardown(self) -> None:
        provider = self.provider
        provider.refusal = ""
        provider.handle(StopRequested())
        provider.later(200.0)
        alive = [name for name, unit in provider.units.items() if not unit.phase.has_ended]
        assert provider.code == 0 and not alive


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)
