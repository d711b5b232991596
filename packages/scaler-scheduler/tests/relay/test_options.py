"""The command line of `scaler_relay`."""

from __future__ import annotations

import pytest

from scaler_protocol.errors import AddressError
from scaler_scheduler.relay.options import COMMAND

HERE, THERE = "tcp://127.0.0.1:2345", "tcp://10.0.0.1:2345"
FALLBACK = "--advertised-scheduler-address"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([HERE, "--scheduler", HERE], "--scheduler tcp://127.0.0.1:2345 is this relay's own address"),
        ([HERE, "--scheduler", "tcp://localhost:2345"], "--scheduler tcp://localhost:2345 is this relay's own address"),
        (["tcp://0.0.0.0:2345", "--scheduler", HERE], "--scheduler tcp://127.0.0.1:2345 is this relay's own address"),
        ([HERE, "--scheduler", THERE, FALLBACK, HERE], f"{FALLBACK} tcp://127.0.0.1:2345 is this relay's own address"),
        (
            ["tcp://0.0.0.0:2400", "--insecure", "--scheduler", HERE],
            f"other hosts than this one cannot reach tcp://127.0.0.1:2345: give {FALLBACK}",
        ),
        (["tcp://0.0.0.0:2400", "--scheduler", THERE], "can be reached from other hosts"),
    ],
)
def test_addresses_that_cannot_be_meant(words: list[str], error: str) -> None:
    with pytest.raises((ValueError, AddressError)) as raised:
        COMMAND.read(words).check()
    assert error in str(raised.value)


def test_hosts_are_told_an_address_that_they_reach() -> None:
    options = COMMAND.read(["tcp://0.0.0.0:2400", "--insecure", "--scheduler", HERE, FALLBACK, THERE])
    options.check()
    assert str(options.fallback) == THERE
    COMMAND.read([HERE, "--scheduler", "tcp://127.0.0.2:2345"]).check()
    assert str(COMMAND.read([HERE, "--scheduler", THERE]).fallback) == THERE
