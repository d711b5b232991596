"""docs/security.md names the budgets that the code has."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler_io.descriptors import RESERVED
from scaler_io.links.admission import CLIENT_LINKS
from scaler_io.links.hub import FAULTS_BYTES, FAULTS_LIMIT, LEFT_LIMIT
from scaler_io.links.link_record import UNREAD_LIMIT
from scaler_io.links.strays import STRAYS_LIMIT
from scaler_io.links.streams import KEPT_LIMIT, KEPT_MOST, STUCK_SECONDS
from scaler_io.links.suspensions import FIRST_SECONDS, FORGET_SECONDS, LONGEST_SECONDS
from scaler_io.objects.multiplexer import WINDOW_BYTES
from scaler_io.service.session_tokens import OWNERS_MOST
from scaler_io.transport.connections import (
    CHANGES,
    HELLO_SECONDS,
    PEER_BYTES,
    STRANGER_BYTES,
    STRANGERS_BYTES,
    TOPIC_BYTES,
    TOPICS,
    TOTAL_BYTES,
)
from scaler_io.transport.sockets import HANDSHAKE_MS
from scaler_protocol.handshake import INLINE_LIMIT, SESSION_CREDIT
from scaler_protocol.limits import DEFINED
from scaler_protocol.messages import MESSAGE_GROUPS, MESSAGE_IDS, MESSAGE_MOST, MESSAGE_NEEDS
from scaler_scheduler.core import agent_reports
from scaler_scheduler.core.call_budgets import CALLS_LIMIT, TASK_BYTES
from scaler_scheduler.journal.commits import BEHIND_BYTES
from scaler_scheduler.journal.file import BALLAST_BYTES
from scaler_storage.engine import object_budgets, readers, room_queue, uploads

DOCS = Path(__file__).resolve().parent.parent / "docs"


def size(number: int) -> str:
    """So many bytes, as documents write them."""
    unit = "MiB" if number >= 1 << 20 else "KiB"
    return f"{number // (1 << 20 if unit == 'MiB' else 1 << 10)} {unit}"


BUDGETS = {
    "one message": [size(MESSAGE_MOST)],
    "bytes that the server has not read yet": [size(PEER_BYTES), size(TOTAL_BYTES)],
    "the same without a Hello": [size(STRANGER_BYTES), f"{STRAYS_LIMIT} messages", size(STRANGERS_BYTES)],
    "a connection without a handshake": [f"{HANDSHAKE_MS // 1000} s", f"{HELLO_SECONDS:g} s"],
    "messages of the scheduler": [size(KEPT_LIMIT), f"{STUCK_SECONDS:g} s", size(KEPT_MOST)],
    "parts and lists of object storage": [size(readers.PEER_BYTES), size(readers.KEY_BYTES), f"{readers.READS_MOST:,}"],
    "parts of objects that wait": [
        size(room_queue.WAITING_BYTES),
        size(room_queue.REQUEST_BYTES),
        size(room_queue.LEAST_BYTES),
    ],
    "an unfinished object": [size(uploads.SLOWEST), f"{uploads.START_SECONDS:g} s"],
    "reads of objects": [f"{readers.READS_MOST:,}"],
    "answers to heartbeats": [size(UNREAD_LIMIT)],
    "calls of a client": [size(SESSION_CREDIT), size(CALLS_LIMIT)],
    "unfinished tasks of a client": [f"{TASK_BYTES} bytes", size(INLINE_LIMIT), "limit of the host or control group"],
    "calls, outside of graphs, of the clients of one client's key": [size(LEFT_LIMIT)],
    "what one message to the scheduler or object storage names": [
        f"{MESSAGE_IDS:,} tasks",
        f"{MESSAGE_NEEDS:,} inputs",
        f"{MESSAGE_GROUPS} groups",
        f"{DEFINED:,} functions",
    ],
    "answers of object storage": [size(2 * WINDOW_BYTES), size(4 * WINDOW_BYTES), f"ask for {size(WINDOW_BYTES)}"],
    "messages that are not allowed": [
        f"{FAULTS_LIMIT}, of {size(FAULTS_BYTES)} together",
        f"wait {FIRST_SECONDS:g} s",
        f"up to {LONGEST_SECONDS:g} s",
        f"{FORGET_SECONDS:g} quiet seconds",
    ],
    "subscriptions of a monitor": [f"{TOPICS} topics", f"{TOPIC_BYTES} bytes", f"{CHANGES:,} changes"],
    "objects in storage": [size(object_budgets.RECORD_BYTES), f"{object_budgets.LEAST_OBJECTS:,}"],
    "rows of workers": [
        f"{agent_reports.WORKERS:,}",
        f"{agent_reports._KEPT_WORKERS:,}",
        f"{agent_reports._LEAST_SHARE}",
    ],
    "connections of one client's key": [f"{CLIENT_LINKS:,}"],
    "connections |": [f"but {RESERVED}"],
}


@pytest.mark.parametrize("what", BUDGETS)
def test_the_table_of_budgets_says_what_the_code_has(what: str) -> None:
    lines = (DOCS / "security.md").read_text("utf-8").splitlines()
    [row] = [line for line in lines if line.startswith(f"| {what}")]
    assert [number for number in BUDGETS[what] if number not in row] == [], row


def test_other_limits_are_what_the_code_has() -> None:
    security, durability = ((DOCS / name).read_text("utf-8") for name in ("security.md", "durability.md"))
    assert f"the last {OWNERS_MOST:,} are remembered" in security
    assert f"more than {size(BEHIND_BYTES)} of records" in durability
    assert f"until less than {size(BEHIND_BYTES // 2)} wait" in durability
    assert f"{size(BALLAST_BYTES)} of reserved room" in durability
