"""Output commit: nothing leaves before the records of its turn are on disk, and nothing overtakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scaler_protocol.messages import Group, Submit
from scaler_protocol.payloads import Payloads
from scaler_scheduler.journal.commits import BEHIND_BYTES, Commits, Outgoing
from scaler_scheduler.journal.ledger import Ledger
from scaler_scheduler.journal.records import Batch

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def written(text: bytes) -> Outgoing:
    return [(b"route", [text])]


def test_outputs_leave_in_order_when_their_records_are_on_disk(driver: SchedulerDriver) -> None:
    batches: list[tuple[int, Batch]] = []
    ledger = Ledger(driver.core.state)
    commits = Commits(ledger, lambda ticket, batch: batches.append((ticket, batch)))
    driver.core.state.recorder = ledger
    assert commits.hold(written(b"0"), [b"cut"]) == (written(b"0"), [b"cut"]), "nothing was recorded"
    client = driver.client()
    assert commits.hold(written(b"1"), []) == ([], [])
    assert commits.hold(written(b"2"), [b"cut"]) == ([], []), "it acknowledges what the first turn has received"
    driver.submit(client)
    assert commits.hold(written(b"3"), []) == ([], [])
    assert [ticket for ticket, _ in batches] == [1, 2]
    commits.committed(1)
    assert commits.hold([], []) == (written(b"1") + written(b"2"), [b"cut"])
    assert commits.is_waiting
    commits.all_committed()
    assert commits.hold(written(b"4"), []) == (written(b"3") + written(b"4"), [])
    assert not commits.is_waiting


def test_the_disk_is_behind_from_a_number_of_bytes_until_it_has_written_half_of_them(driver: SchedulerDriver) -> None:
    ledger = Ledger(driver.core.state)
    commits = Commits(ledger, lambda ticket, batch: None)
    driver.core.state.recorder = ledger
    client, call = driver.client(), bytes(BEHIND_BYTES // 8)
    for at in range(9):
        assert commits.is_behind == (at == 8)
        submit = Submit([Group(b"f" * 16)], [(client[0] << 32) + at + 1], Payloads([call]))
        ledger.submitted(driver.core.state.sessions[client[0]], submit)
        commits.put()
    for ticket in range(1, 10):
        assert commits.is_behind == (ticket <= 6), ticket
        commits.committed(ticket)
    assert commits.waiting_bytes == 0
