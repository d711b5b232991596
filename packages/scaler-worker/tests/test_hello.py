"""What an agent says of itself."""

from __future__ import annotations

from scaler_protocol.codec import decode, encode
from scaler_protocol.handshake import Hello, Role
from scaler_worker.hello import agent_hello


def test_capabilities_are_sorted_columns_and_every_agent_is_another() -> None:
    def make() -> tuple[bytes, tuple[object, ...]]:
        hello = agent_hello(
            name="n", host="h", workers=2, queue_size=5, death_timeout_seconds=300.0,
            capabilities={"linux": -1, "gpu": 3}, manager="m", unit="u",
        )  # fmt: skip
        assert isinstance(decode([bytes(frame) for frame in encode(hello)]), Hello)
        return hello.identity, (
            hello.role, hello.workers, hello.queue_size, list(hello.capability_names),
            list(hello.capability_values), hello.manager, hello.unit, hello.lives_on_seconds,
        )  # fmt: skip

    (first, fields), (second, _) = make(), make()
    assert fields == (Role.AGENT, 2, 5, ["gpu", "linux"], [3, -1], "m", "u", 600.0)
    assert first != second
