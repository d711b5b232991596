"""One message of several sessions becomes one per session."""

from __future__ import annotations

from scaler_protocol.messages import Done, Ended, NeedInputs, NeedTasks, Output
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile
from scaler_worker.agent.core.split_by_session import by_session

A, B = 1 << 32, 2 << 32


def test_one_session_stays_whole() -> None:
    message = NeedTasks([A, A + 1])
    [(session, same)] = by_session(message)
    assert session == 1 and same is message


def test_done_is_cut() -> None:
    profiles = [Profile(at, 0, 0, 0, 0, 0).packed() for at in range(3)]
    done = Done([A, B, A + 1], [0, 1, 2], Payloads([b"a", b"b", b"c"]), [7, 8, 9], [1, 2], b"".join(profiles), ["w"])
    assert dict(by_session(done)) == {
        1: Done([A, A + 1], [0, 2], Payloads([b"a", b"c"]), [7, 9], [1], profiles[0] + profiles[2], ["w"]),
        2: Done([B], [1], Payloads([b"b"]), [8], [0], profiles[1], ["w"]),
    }
    bare = Done([A, B], [0, 1], Payloads([b"a", b"b"]))
    assert dict(by_session(bare))[2] == Done([B], [1], Payloads([b"b"]), [], [])


def test_the_others_are_cut() -> None:
    assert dict(by_session(NeedInputs([A, B], [A + 5, A + 6]))) == {
        1: NeedInputs([A], [A + 5]),
        2: NeedInputs([B], [A + 6]),
    }
    output = Output([A, B], [1, 2], Payloads([b"x", b"y"]))
    assert dict(by_session(output))[2] == Output([B], [2], Payloads([b"y"]))
    assert dict(by_session(NeedTasks([A, B])))[1] == NeedTasks([A])
    assert dict(by_session(Ended([A, B])))[2] == Ended([B])
