"""Actions reach the scheduler of this monitor, or no scheduler."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scaler_protocol.addresses import Address
from scaler_ui.listening import scheduler_address
from scaler_ui.model.model import MonitorModel
from scaler_ui.web.operator_actions import ACTION_TIMEOUT_SECONDS, IDLE_SECONDS, OperatorActions


@pytest.mark.parametrize(
    ("monitor", "told", "found"),
    [
        ("tcp://127.0.0.1:9", "tcp://127.0.0.1:7", "tcp://127.0.0.1:7"),
        ("tcp://cluster:9", "tcp://0.0.0.0:7", "tcp://cluster:7"),
        ("ipc:///tmp/m", "tcp://10.0.0.1:7", "tcp://10.0.0.1:7"),
        ("tcp://cluster:9", "ipc:///tmp/s", "ipc:///tmp/s"),
    ],
)
def test_where_the_scheduler_is(monitor: str, told: str, found: str) -> None:
    assert scheduler_address(Address.parse(monitor), told) == Address.parse(found)


def test_an_order_to_nobody_is_dropped_and_said_so_to_who_gave_it(publications: object) -> None:
    now = [100.0]
    model = MonitorModel(tasks=10)
    actions = OperatorActions(model, Address.parse("tcp://127.0.0.1:3"), lambda: now[0])
    actions.cancel(5, "ann")
    assert actions.trouble("ann") == "no scheduler is known yet"
    model.status = publications.status(address="tcp://127.0.0.1:1")  # type: ignore[attr-defined]
    actions.drain(1, 7, "ann")
    actions.turn()
    assert actions.trouble("ann") == ""
    now[0] += ACTION_TIMEOUT_SECONDS + 1
    actions.turn()
    assert actions.trouble("ann") == "the scheduler accepts no action: it does not answer"
    assert actions.trouble("bob") == ""
    now[0] += IDLE_SECONDS
    actions.turn()
    assert actions.trouble("ann") == ""
    actions.close()


def test_an_order_that_cannot_be_written_is_told_to_its_reader_and_holds_up_no_others(publications: object) -> None:
    model = MonitorModel(tasks=10)
    model.status = publications.status(address="tcp://127.0.0.1:1")  # type: ignore[attr-defined]
    actions = OperatorActions(model, Address.parse("tcp://127.0.0.1:3"))
    actions.take_profile("x" * 5000, 1.0, "ann")
    assert "TakeProfile.function is 'xxx" in actions.trouble("ann")
    actions.take_profile("math:sqrt", 1.0, "ann")
    assert actions.trouble("ann") == ""
    actions.close()


def test_an_address_that_is_none_is_told_to_who_asks_or_gives_an_order(publications: object) -> None:
    model = MonitorModel(tasks=10)
    model.status = publications.status(address="nowhere")  # type: ignore[attr-defined]
    actions = OperatorActions(model, Address.parse("tcp://127.0.0.1:3"))
    orders: dict[str, Callable[[str], object]] = {
        "ann": lambda reader: actions.ask_why(5, reader),
        "bob": lambda reader: actions.cancel(5, reader),
        "eve": lambda reader: actions.take_profile("", 30.0, reader),
    }
    for reader, order in orders.items():
        order(reader)
        assert "this page cannot give orders: address 'nowhere': write tcp://host:port" in actions.trouble(reader)
    actions.close()
