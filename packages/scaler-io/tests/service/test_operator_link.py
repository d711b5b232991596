"""A message that cannot be written is refused when it is given, and holds up no other one."""

from __future__ import annotations

import pytest

from scaler_io.service.operator_link import OperatorLink
from scaler_protocol.addresses import Address
from scaler_protocol.errors import InvalidFieldError
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.operations import TakeProfile


@pytest.mark.parametrize("function", ["x" * 5000, "\ud800"])
def test_a_message_that_cannot_be_written_is_refused_at_once(function: str) -> None:
    link = OperatorLink(Address.parse("tcp://127.0.0.1:1"), "ann", ServiceKind.SCHEDULER)
    with pytest.raises(InvalidFieldError, match=r"TakeProfile\.function"):
        link.send(TakeProfile(1, function, 1.0))
    link.is_up = True  # what is sent then is written
    assert link.turn() == []
    link.close()
