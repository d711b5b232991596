"""Profile records."""

from __future__ import annotations

from scaler_protocol.profiles import NO_PROFILE, PROFILE, Profile, profile_at


def test_a_record_is_fixed() -> None:
    one = Profile(1_500_000, 2, 3 << 30, 4711, 7, 2, 5, 6)
    packed = one.packed()
    assert len(packed) == PROFILE.size == 44
    assert packed == (
        (1_500_000).to_bytes(8, "little")
        + (2).to_bytes(8, "little")
        + (3 << 30).to_bytes(8, "little")
        + (4711).to_bytes(4, "little")
        + (7).to_bytes(4, "little")
        + (2).to_bytes(4, "little")
        + (5).to_bytes(4, "little")
        + (6).to_bytes(4, "little")
    )
    assert profile_at(NO_PROFILE + packed, 1) == one


def test_a_task_that_never_ran_has_none() -> None:
    assert bytes(44) == NO_PROFILE and profile_at(NO_PROFILE, 0) == Profile(0, 0, 0, 0, 0, 0)
