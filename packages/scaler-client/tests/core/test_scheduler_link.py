"""The state of the link to the scheduler, and the errors that name why it is down."""

from __future__ import annotations

from scaler_client.core.scheduler_link import SchedulerLink
from scaler_io.links.events import LinkDown, LinkLost, LinkRefused, LinkUp
from scaler_protocol.errors import HandshakeRefusedError, SchedulerLostError
from scaler_protocol.handshake import Goodbye, Welcome

ADDRESS = "tcp://127.0.0.1:2345"


def test_only_a_link_that_was_up_before_can_be_forgotten() -> None:
    link = SchedulerLink(ADDRESS)
    assert not link.up and not link.opened(LinkUp(Welcome(1), resumed=False)) and link.up
    link.broken(LinkDown("cut"), 0.0)
    assert not link.up and link.failure is None
    assert not link.opened(LinkUp(Welcome(1), resumed=True))
    assert link.opened(LinkUp(Welcome(2), resumed=False))


def test_a_lost_link_names_the_last_reason_and_fails_until_it_is_up() -> None:
    link = SchedulerLink(ADDRESS)
    link.opened(LinkUp(Welcome(1), resumed=False))
    link.broken(LinkDown("cut"), 0.0)
    error = link.lost(LinkLost("no connection for 5 s"))
    assert isinstance(error, SchedulerLostError) and link.failure is error and not link.up
    assert str(error) == f"no connection for 5 s to the scheduler at {ADDRESS} (cut)"
    link.opened(LinkUp(Welcome(1), resumed=False))
    assert link.up and link.failure is None


def test_a_cluster_that_has_ended_fails_all_calls_until_there_is_another_one() -> None:
    link = SchedulerLink(ADDRESS)
    link.opened(LinkUp(Welcome(1), resumed=False))
    error = link.ended(Goodbye("told to"))
    assert isinstance(error, SchedulerLostError) and link.failure is error and not link.up
    assert str(error) == f"the cluster at {ADDRESS} has ended: told to"
    link.broken(LinkDown("cut"), 0.0)
    assert link.failure is error
    assert link.opened(LinkUp(Welcome(2), resumed=False)) and link.failure is None


def test_a_link_that_was_never_up_names_the_command_to_start_a_scheduler() -> None:
    link = SchedulerLink(ADDRESS)
    assert f"Start one with: scaler_scheduler {ADDRESS}" in str(link.lost(LinkLost("no connection for 5 s")))
    refusal = link.refused(LinkRefused(("old", "odd")))
    assert isinstance(refusal, HandshakeRefusedError) and "old; odd" in str(refusal) and link.failure is refusal
