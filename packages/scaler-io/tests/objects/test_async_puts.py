"""AsyncPuts: how much may be put without waiting."""

from __future__ import annotations

from typing import cast

import pytest

from scaler_io.objects.async_puts import AsyncPuts
from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.operations import PutEnded
from scaler_protocol.errors import ClientQuitError, ScalerError, StorageFullError
from scaler_protocol.objects import SHARED_BYTES, Reference

NAME = b"n" * 16


class SlowConnection:
    """An ObjectConnection whose server answers when the test says so."""

    def __init__(self) -> None:
        self.unconfirmed: list[PutEnded] = []
        self.closed = False

    def put_soon(self, payload: bytes, *, session: int, name: bytes, done: PutEnded) -> Reference:
        assert session == 5
        if self.closed:
            raise ClientQuitError
        self.unconfirmed.append(done)
        return Reference(name, len(payload))


@pytest.fixture
def slow() -> SlowConnection:
    return SlowConnection()


@pytest.fixture
def connection(slow: SlowConnection) -> ObjectConnection:
    return cast(ObjectConnection, slow)


@pytest.mark.parametrize("error", [None, StorageFullError("full")])
def test_room_comes_back_when_storage_answers(
    slow: SlowConnection, connection: ObjectConnection, error: ScalerError | None
) -> None:
    puts, answers = AsyncPuts(limit=100), list[ScalerError | None]()
    assert puts.may_put(100) and not puts.may_put(101)
    assert puts.put(connection, bytes(60), session=5, name=NAME, done=answers.append) == Reference(NAME, 60)
    assert puts.may_put(40) and not puts.may_put(41) and not answers
    slow.unconfirmed.pop()(error)
    assert puts.may_put(100) and answers == [error]


def test_a_refused_put_takes_no_room(slow: SlowConnection, connection: ObjectConnection) -> None:
    puts, slow.closed = AsyncPuts(limit=100), True
    with pytest.raises(ClientQuitError):
        puts.put(connection, bytes(60), session=5, name=NAME, done=print)
    assert puts.may_put(100)


def test_objects_for_segments_are_waited_for() -> None:
    puts = AsyncPuts(limit=10 * SHARED_BYTES)
    assert puts.may_put(SHARED_BYTES - 1) and not puts.may_put(SHARED_BYTES)
