"""What a relay makes of the answers of many agents."""

from __future__ import annotations

from scaler_protocol.codec import encode
from scaler_protocol.operations import ProfilePart, TakeProfile
from scaler_protocol.stack_counts import OTHERS
from scaler_scheduler.relay.translation import JoinedProfile


def test_samples_for_which_a_profile_has_no_room_are_counted() -> None:
    profile = JoinedProfile(TakeProfile(7, "", 1.0, 20))
    assert profile.add(ProfilePart(1, ["f;often", "f;rare", OTHERS], [9, 2, 4], 1, left=1)) is None
    joined = profile.add(ProfilePart(1, ["f;often", "g;sometimes", "h;rarely"], [9, 3, 1], 2, left=0))
    assert joined == ProfilePart(7, ["f;often", "g;sometimes", OTHERS], [18, 3, 7], 3)


def test_counts_fit_into_the_message() -> None:
    profile = JoinedProfile(TakeProfile(7, "", 1.0, 100))
    profile.add(ProfilePart(1, ["f"], [2**64 - 1], 2**32 - 1, left=1))
    joined = profile.add(ProfilePart(1, ["f"], [2**64 - 1], 2**32 - 1, left=0))
    assert joined is not None
    encode(joined)
    assert (list(joined.counts), joined.workers) == ([2**64 - 1], 2**32 - 1)
